// Which elements of its parameters a rank answers for among the ranks that hold the same ones
// (nn::Sharding::replicas): it adds up their squares for the gradient's norm, and under ZeRO it
// alone has their optimizer states and updates them.
//
// A buffer of gradients (a layer's, over one axis) is cut as reductions cut it, into one run of
// elements a rank (collective::reduce_share), so that after a reduce-scatter a rank has the sums of
// just these. A run may begin and end inside a parameter:
//
//   buffer of a layer    |  qkv  |   o   |router|n|n|
//   two replicas         |     0      |      1      |      of o rank 0 has the first part
#pragma once

#include <piper/executor/gradient_shares.h>
#include <piper/executor/weight_shares.h>
#include <piper/nn/stage.h>
#include <piper/strategy/rank_layout.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace piper::optim {

// Where `rank` stands in its group of this axis (RankLayout::group), which lies in one stage.
int64_t index_among_replicas(const strategy::RankLayout& layout, strategy::Axis replicas,
                             Rank rank);

// Elements [begin, end) of a parameter, row-major.
struct ParameterShare {
  size_t parameter = 0;  // index in the list
  int64_t begin = 0, end = 0;
  bool operator==(const ParameterShare&) const = default;
};

// All elements of all parameters.
std::vector<ParameterShare> all_shares(const std::vector<nn::Parameter>& parameters);

// Those of `rank`; parameters without any are left out. `parameters` are all that the rank holds.
std::vector<ParameterShare> own_shares(const std::vector<nn::Parameter>& parameters,
                                       const strategy::RankLayout& layout, Rank rank);

// The elements as a parameter of one dimension, which shares their storage; the name and what else
// is said of the parameter stay.
nn::Parameter restricted(const std::vector<nn::Parameter>& parameters, const ParameterShare& share);

// Under ZeRO 2 a rank has the sums of its own gradients alone: where they are, of each buffer that
// ranks share, of the layers that are divided (strategy::divides_gradients).
executor::GradientShares gradient_shares(nn::Stage& stage, const strategy::RankLayout& layout,
                                         Rank rank, const std::function<bool(int32_t)>& is_divided);

// Under ZeRO 3 a rank has its own weights alone, in each buffer that ranks share. If experts travel
// as residuals (strategy/residual_code.h), it has its own as they are, in addition to what all were
// told. `is_divided` says which buffers are divided.
executor::WeightShares weight_shares(nn::Stage& stage, const strategy::RankLayout& layout,
                                     Rank rank,
                                     const std::function<bool(strategy::Axis)>& is_divided);

// Elements [begin, end) of a parameter's gradient, flat: of its share, or of itself where its
// buffer is not among them.
at::Tensor gradient_of(const nn::Parameter& parameter, int64_t begin, int64_t end,
                       const executor::GradientShares& shares);

}  // namespace piper::optim
