// What one layer costs one rank for one micro-batch: seconds by what they are spent on, and memory.
// Computed once for each distinct layer, micro-batch size and expert degree, then looked up: a
// search prices thousands of strategies from a few dozen of these.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/all_to_all_config.h>
#include <piper/cost/expert_rows.h>
#include <piper/cost/grouped_choice.h>
#include <piper/cost/layer_memory.h>
#include <piper/cost/prices.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

namespace piper::cost {

// What depends on what is recomputed.
struct RecomputeCost {
  double compute = 0;  // run again
  double ahead = 0;    // the part of compute and exchange that needs no gradient and comes first
  double exchange =
      0;  // waiting: rows that travel again, and both exchanges back, less what hides them
  double divided_compute = 0, divided_exchange = 0;  // that a backward takes more in two parts
  // What a forward and this backward of two micro-batches save when they take turns: n layers save
  // n pair_saves - pair_ends.
  double pair_saves = 0, pair_ends = 0;
  LayerMemory memory;
};

struct LayerCost {
  double forward = 0;            // compute
  double backward = 0;           // compute
  double backward_weights = 0;   // the part of it that adds to the weights' gradients
  double exchange_forward = 0;   // waiting: counts, dispatch, combine, less what hides them
  double moving_part = 0;        // of one exchange of rows, the rest being latency
  int64_t exchange_scratch = 0;  // of one, in the memory below
  std::array<RecomputeCost, strategy::kRecomputes.size()> by_recompute;
  const RecomputeCost& with(strategy::Recompute recompute) const {
    return by_recompute[static_cast<size_t>(recompute)];
  }
};

// A head; with the join before it where it is that of a module of multi-token prediction.
struct HeadCost {
  int32_t layer = -1;  // of the module
  double forward = 0, backward = 0;
  double backward_weights = 0;  // part of `backward`
  double divided_compute = 0;   // that it takes more in two parts
  SegmentBytes head, join;
  int64_t hidden_bytes = 0;    // of the x that it reads
  int64_t gradient_bytes = 0;  // of x, as its backward leaves it: that of own tokens
  double gather = 0;           // seconds, where that is less: the gradient of all tokens
};

// The ends of the model on one rank, for one micro-batch.
struct EndCost {
  double embedding_forward = 0, embedding_backward = 0;
  HeadCost head;
  std::vector<HeadCost> modules;
  int64_t hidden_bytes = 0;  // of x
};

// The work of a balanced micro-batch: every expert gets the same rows (rounded up), and drops those
// beyond its capacity, or has as many where that is padded.
SegmentWork balanced_work(const model::Model& model, int32_t layer, int64_t sequences,
                          int64_t sequence, int64_t ep, int64_t element_bytes,
                          const strategy::Capacity& capacity = {}, const WorkDivision& by = {});

// Not thread-safe. The model, the cluster and the load outlive it.
//
// With a load that is not balanced the time is that of the slowest rank of the expert group, for
// which the others wait at every exchange; memory is that of one ep index.
class LayerCosts {
 public:
  // `load` may be nullptr (balanced); its `routed` is not read.
  LayerCosts(const model::Model& model, const cluster::Cluster& cluster,
             strategy::Precision precision, int64_t sequence, const ExpertLoad* load = nullptr);

  bool is_balanced() const { return load_ == nullptr || load_->share.empty(); }

  size_t num_types() const { return representative_.size(); }
  // Equal layers have one type; under a load each has its own.
  size_t type_of(int32_t layer) const { return type_[static_cast<size_t>(layer)]; }
  int32_t representative(size_t type) const { return representative_[type]; }
  // Requires the strategy's sequence and precision to be those given above.
  const LayerCost& layer(size_t type, const strategy::Strategy& strategy);
  // Scratch of one exchange on a rank with this work; 0 where nothing is exchanged.
  int64_t exchange_scratch(int32_t layer, const SegmentWork& work, int64_t ep,
                           const AllToAllConfig& config) const;
  // Memory of a layer on a rank of this ep index; balanced: the same on all.
  LayerMemory memory(int32_t layer, const strategy::Strategy& strategy, int64_t ep_index);
  // Ep indices whose memory may be the largest on a stage with these layers: {0} when balanced,
  // else those with most rows in sum and in one layer.
  std::vector<int64_t> fullest_ep_indices(const strategy::Strategy& strategy,
                                          std::span<const int32_t> layers);
  const EndCost& ends(const strategy::Strategy& strategy);

 private:
  Routed routed(int32_t layer) const;
  LayerCost make_layer(size_t type, const strategy::Strategy& strategy);
  struct ExchangeSeconds {
    std::vector<double> rows;  // of each chunk's exchange; one entry: all chunks' are alike
    double counts = 0;
    double of_chunk(int64_t chunk) const {
      return rows.size() > 1 ? rows[static_cast<size_t>(chunk - 1)] : rows.front();
    }
  };
  // Under a load: rows of a strategy with these micro-batches, degrees and capacity; kept until
  // others are asked for.
  struct Loaded;
  const ExpertRows& rows(const strategy::Strategy& strategy);
  SegmentWork loaded_work(int32_t layer, const strategy::Strategy& strategy, int64_t ep_index);
  const GroupedChoice* grouped() const { return grouped_.is_measured() ? &grouped_ : nullptr; }
  // What the layer's busiest ranks do: that with most rows, that with the largest expert.
  std::vector<SegmentWork> works(int32_t layer, const strategy::Strategy& strategy);
  // `work`: of a chunk; where chunks are groups of peers, of all of them.
  ExchangeSeconds exchange_seconds(int32_t layer, const SegmentWork& work,
                                   const strategy::Strategy& strategy);
  // A gather or a reduce-scatter of hidden states among the ranks that share matrices, which an
  // all-reduce does one after the other.
  double hidden_states_seconds(const SegmentWork& work) const;
  SegmentWork balanced(int32_t layer, const strategy::Strategy& strategy) const;
  HeadCost make_head(int32_t layer, const strategy::Strategy& strategy) const;
  EndCost make_ends(const strategy::Strategy& strategy) const;

  const model::Model& model_;
  const cluster::Cluster& cluster_;
  strategy::Precision precision_;
  int64_t sequence_;
  const ExpertLoad* load_;
  GroupedChoice grouped_;
  std::shared_ptr<Loaded> loaded_;
  std::vector<size_t> type_;
  std::vector<int32_t> representative_;
  // What the cost of a layer depends on, of a strategy.
  struct Key {
    size_t type = 0;
    int64_t sequences = 0, ep = 1, etp = 1, tp = 1, cp = 1, groups = 1;
    bool sequence_parallel = false;
    double capacity_factor = 0;
    bool pads_capacity = false;
    strategy::AllToAll all_to_all = strategy::AllToAll::kFlat;
    int64_t chunk_bytes = 0;
    strategy::MoeSchedule moe_schedule = strategy::MoeSchedule::kPlain;
    int64_t moe_chunks = 1;
    int64_t redundant_experts = 0;
    strategy::ContextExchange context_exchange = strategy::ContextExchange::kRing;
    bool pairs = false;  // pair_saves are known
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, LayerCost> layers_;
  std::map<std::pair<int64_t, WorkDivision>, EndCost> ends_;  // by sequences
};

}  // namespace piper::cost
