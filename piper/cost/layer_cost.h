// What one layer costs one rank for one micro-batch: seconds by what they are spent on, and memory.
// Computed once for each distinct layer, micro-batch size and expert degree, then looked up: a
// search prices thousands of strategies from a few dozen of these.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/layer_memory.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace piper::cost {

struct LayerCost {
  double forward = 0;                 // compute
  double backward = 0;                // compute
  double recompute = 0;               // compute, when the strategy recomputes
  double exchange_forward = 0;        // counts, dispatch, combine
  double exchange_backward = 0;       // both back
  double exchange_recompute = 0;      // dispatch, combine
  std::array<LayerMemory, 2> memory;  // by strategy::Recompute
};

// A head; with the join before it where it is that of a module of multi-token prediction.
struct HeadCost {
  int32_t layer = -1;  // of the module
  double forward = 0, backward = 0;
  SegmentBytes head, join;
  int64_t hidden_bytes = 0;  // of the x that it reads
};

// The ends of the model on one rank, for one micro-batch.
struct EndCost {
  double embedding_forward = 0, embedding_backward = 0;
  HeadCost head;
  std::vector<HeadCost> modules;
  int64_t hidden_bytes = 0;  // of x
};

// The work of a balanced micro-batch: every expert gets the same rows (rounded up).
SegmentWork balanced_work(const model::Model& model, int32_t layer, int64_t sequences,
                          int64_t sequence, int64_t ep, int64_t element_bytes);

// Not thread-safe. The model and the cluster outlive it.
class LayerCosts {
 public:
  LayerCosts(const model::Model& model, const cluster::Cluster& cluster,
             strategy::Precision precision, int64_t sequence);

  size_t num_types() const { return representative_.size(); }
  // Equal layers have one type.
  size_t type_of(int32_t layer) const { return type_[static_cast<size_t>(layer)]; }
  int32_t representative(size_t type) const { return representative_[type]; }
  const LayerCost& layer(size_t type, int64_t micro_batch_sequences, const strategy::Mesh& mesh);
  const EndCost& ends(int64_t micro_batch_sequences);

 private:
  LayerCost make_layer(size_t type, int64_t sequences, const strategy::Mesh& mesh) const;
  void add_exchanges(LayerCost& cost, int32_t layer, const SegmentWork& work,
                     const strategy::Mesh& mesh) const;
  HeadCost make_head(int32_t layer, int64_t sequences) const;
  EndCost make_ends(int64_t sequences) const;

  const model::Model& model_;
  const cluster::Cluster& cluster_;
  strategy::Precision precision_;
  int64_t sequence_;
  std::vector<size_t> type_;
  std::vector<int32_t> representative_;
  std::map<std::tuple<size_t, int64_t, int64_t, int64_t>, LayerCost> layers_;
  std::map<int64_t, EndCost> ends_;
};

}  // namespace piper::cost
