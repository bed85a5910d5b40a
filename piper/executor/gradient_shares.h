// ZeRO 2 on one rank: of the gradients that others hold alike it keeps the sums of its own elements
// alone, as reductions cut them (optim/parameter_share.h). A buffer of all of them has memory from
// the first task of a micro-batch that adds to it until the rank has kept its share, as the graph
// says (schedule::SlotKind::kGradients; nn::Stage::hold_gradients).
//
//   buffer of a layer     | of rank 0 | of rank 1 |     for a part of each micro-batch
//   sum, on rank 1                    | of rank 1 |     all step, over the micro-batches
//
// Thread safety: one object belongs to its rank's thread.
#pragma once

#include <piper/nn/aten.h>
#include <piper/strategy/rank_layout.h>

#include <cstdint>
#include <map>
#include <utility>

namespace piper::executor {

class GradientShares {
 public:
  using Key =
      std::pair<int32_t, strategy::Axis>;  // layer and axis, as nn::Stage::gradients has them

  // Elements [begin, begin + count) of a buffer are this rank's; `options` are the buffer's. Once
  // for each buffer (PIPER_CHECK).
  void add(Key key, int64_t begin, int64_t count, const at::TensorOptions& options);
  // The sums are zero.
  void start_step();
  // Takes a buffer whose own elements are sums over the ranks, and adds these to those of earlier
  // micro-batches, in the order of the calls.
  void keep(Key key, const at::Tensor& buffer);

  bool contains(Key key) const { return shares_.contains(key); }
  int64_t bytes() const;  // of all sums
  // Elements [begin, end) of the buffer, all of them this rank's, as a view of the sums. A sum that
  // nothing was added to in this step holds anything.
  at::Tensor sums(Key key, int64_t begin, int64_t end) const;

 private:
  struct Share {
    at::Tensor sum;
    int64_t begin = 0;
    bool is_zero = true;
  };
  std::map<Key, Share> shares_;
};

}  // namespace piper::executor
