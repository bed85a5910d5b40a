// ZeRO 3 on one rank: of the weights that others hold alike it keeps its own elements alone, as
// reductions cut them (optim/parameter_share.h), and the optimizer updates these. A buffer of all
// of them has memory from its gather until what computes with it is done, as the graph says
// (schedule::SlotKind::kWeights; nn::Stage::hold_weights).
//
// Under ZeRO 1 and 2 of experts that travel as residuals (strategy/residual_code.h) alike: the
// optimizer updates the own elements, beside a buffer of what all were told, which stays.
//
// Thread safety: one object belongs to its rank's thread.
#pragma once

#include <piper/executor/gradient_shares.h>
#include <piper/nn/aten.h>

#include <cstdint>
#include <map>
#include <vector>

namespace piper::executor {

class WeightShares {
 public:
  using Key = GradientShares::Key;

  // Elements [begin, begin + count) of a buffer are this rank's; `options` are the buffer's. Once
  // for each buffer (PIPER_CHECK). They hold anything until keep().
  void add(Key key, int64_t begin, int64_t count, const at::TensorOptions& options);
  // The own elements of a whole buffer; and back into one, whose others stay.
  void keep(Key key, const at::Tensor& buffer);
  void fill(Key key, const at::Tensor& buffer) const;

  bool empty() const { return shares_.empty(); }
  bool contains(Key key) const { return shares_.contains(key); }
  std::vector<Key> keys() const;
  // own() returns those of the buffer's elements [begin, end) that are this rank's, as a view;
  // `first` is where they begin, counted from `begin`. Undefined where none is.
  struct Part {
    at::Tensor weights;
    int64_t first = 0;
  };
  Part own(Key key, int64_t begin, int64_t end) const;

 private:
  struct Share {
    at::Tensor weights;
    int64_t begin = 0;
  };
  std::map<Key, Share> shares_;
};

}  // namespace piper::executor
