#include <piper/base/error.h>
#include <piper/collective/all_reduce_direct.h>
#include <piper/optim/parameter_share.h>

#include <algorithm>
#include <map>
#include <utility>

namespace piper::optim {

int64_t index_among_replicas(const strategy::RankLayout& layout, strategy::Axis replicas,
                             Rank rank) {
  const int64_t member = layout.member(rank);
  const strategy::Members group = layout.members(replicas, member);
  return (member - group.first) / group.stride;
}

std::vector<ParameterShare> all_shares(const std::vector<nn::Parameter>& parameters) {
  std::vector<ParameterShare> shares;
  for (size_t i = 0; i < parameters.size(); ++i)
    shares.push_back({i, 0, parameters[i].value.numel()});
  return shares;
}

std::vector<ParameterShare> own_shares(const std::vector<nn::Parameter>& parameters,
                                       const strategy::RankLayout& layout, Rank rank) {
  std::map<std::pair<int32_t, strategy::Axis>, int64_t> elements;  // of the buffers
  for (const nn::Parameter& p : parameters)
    elements[{p.layer, p.sharding.replicas}] += p.value.numel();
  std::vector<ParameterShare> shares;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const nn::Parameter& p = parameters[i];
    const strategy::Axis replicas = p.sharding.replicas;
    const collective::Block mine =
        collective::reduce_share(index_among_replicas(layout, replicas, rank),
                                 layout.size(replicas), elements.at({p.layer, replicas}));
    const int64_t begin = std::max(p.offset, mine.offset),
                  end = std::min(p.offset + p.value.numel(), mine.offset + mine.count);
    if (begin < end) shares.push_back({i, begin - p.offset, end - p.offset});
  }
  return shares;
}

nn::Parameter restricted(const std::vector<nn::Parameter>& parameters,
                         const ParameterShare& share) {
  nn::Parameter of = parameters.at(share.parameter);
  PIPER_CHECK(of.value.is_contiguous() && of.gradient.is_contiguous(), of.name);
  of.offset += share.begin;
  for (at::Tensor* tensor : {&of.value, &of.gradient})
    *tensor = tensor->view({-1}).narrow(0, share.begin, share.end - share.begin);
  return of;
}

executor::GradientShares gradient_shares(nn::Stage& stage, const strategy::RankLayout& layout,
                                         Rank rank,
                                         const std::function<bool(int32_t)>& is_divided) {
  executor::GradientShares shares;
  for (const nn::Parameter& p : stage.parameters()) {
    const executor::GradientShares::Key key{p.layer, p.sharding.replicas};
    if (!is_divided(p.layer) || layout.size(key.second) < 2 || shares.contains(key)) continue;
    const at::Tensor whole = stage.gradients(key.first, key.second);
    const collective::Block mine = collective::reduce_share(
        index_among_replicas(layout, key.second, rank), layout.size(key.second), whole.numel());
    shares.add(key, mine.offset, mine.count, whole.options());
  }
  return shares;
}

executor::WeightShares weight_shares(nn::Stage& stage, const strategy::RankLayout& layout,
                                     Rank rank,
                                     const std::function<bool(strategy::Axis)>& is_divided) {
  executor::WeightShares shares;
  for (const nn::Parameter& p : stage.parameters()) {
    const executor::WeightShares::Key key{p.layer, p.sharding.replicas};
    if (layout.size(key.second) < 2 || shares.contains(key) || !is_divided(key.second)) continue;
    const at::Tensor whole = stage.weights(key.first, key.second);
    const collective::Block mine = collective::reduce_share(
        index_among_replicas(layout, key.second, rank), layout.size(key.second), whole.numel());
    shares.add(key, mine.offset, mine.count, whole.options());
  }
  return shares;
}

at::Tensor gradient_of(const nn::Parameter& parameter, int64_t begin, int64_t end,
                       const executor::GradientShares& shares) {
  const executor::GradientShares::Key key{parameter.layer, parameter.sharding.replicas};
  if (!shares.contains(key)) return parameter.gradient.reshape({-1}).narrow(0, begin, end - begin);
  return shares.sums(key, parameter.offset + begin, parameter.offset + end);
}

}  // namespace piper::optim
