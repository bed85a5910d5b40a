#include <fmt/format.h>
#include <piper/cluster/findings.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace piper::cluster {
namespace {

double best_rate(const Curve& curve) {
  double best = 0;
  for (const CurvePoint& point : curve.points) best = std::max(best, point.rate());
  return best;
}

// Rates of all head sizes by what else the points have in common.
using Shapes = std::map<std::vector<double>, std::map<double, double>>;

Shapes by_shape(const Curve& attention) {
  const size_t head_dim = axis_of(attention, "head_dim");
  const auto index_of = [&](const char* axis) {
    return static_cast<size_t>(std::ranges::find(attention.axes, axis) - attention.axes.begin());
  };
  const size_t heads = index_of("heads"), kv_heads = index_of("kv_heads");
  Shapes shapes;
  for (const CurvePoint& point : attention.points) {
    std::vector<double> shape;
    for (size_t axis = 0; axis < point.at.size(); ++axis) {
      if (axis == head_dim || axis == heads) continue;
      const bool ratio = axis == kv_heads && heads < point.at.size() && point.at[heads] > 0;
      shape.push_back(ratio ? point.at[axis] / point.at[heads] : point.at[axis]);
    }
    double& rate = shapes[shape][point.at[head_dim]];
    rate = std::max(rate, point.rate());
  }
  return shapes;
}

const Curve* with_prefix(const std::vector<Curve>& curves, const std::string& prefix) {
  const auto found = std::ranges::find_if(
      curves, [&](const Curve& curve) { return curve.name.starts_with(prefix); });
  return found == curves.end() ? nullptr : &*found;
}

}  // namespace

std::vector<HeadSize> rank_head_sizes(const Curve& attention) {
  std::map<double, std::pair<double, int64_t>> log_sums;
  for (const auto& [shape, rates] : by_shape(attention)) {
    if (rates.size() < 2) continue;
    double best = 0;
    for (const auto& [head_dim, rate] : rates) best = std::max(best, rate);
    for (const auto& [head_dim, rate] : rates) {
      log_sums[head_dim].first += std::log(rate / best);
      log_sums[head_dim].second += 1;
    }
  }
  std::vector<HeadSize> ranked;
  for (const auto& [head_dim, sum] : log_sums)
    ranked.push_back({head_dim, std::exp(sum.first / static_cast<double>(sum.second)), sum.second});
  std::ranges::stable_sort(ranked, std::greater(), &HeadSize::relative_rate);
  return ranked;
}

std::string Join::well_text() const {
  std::string text;
  for (const JoinedPoint& point : points)
    if (point.both_well) text += fmt::format("{}{:.0f}", text.empty() ? "" : ", ", point.sequences);
  return text;
}

Join join_micro_batches(const Curve& attention, const Curve& experts, double well) {
  const double best_attention = best_rate(attention), best_experts = best_rate(experts);
  const size_t axis = axis_of(attention, "sequences"), other_axis = axis_of(experts, "sequences");
  Join join;
  for (const CurvePoint& a : attention.points)
    for (const CurvePoint& e : experts.points)
      if (a.at[axis] == e.at[other_axis]) {
        JoinedPoint point{.sequences = a.at[axis],
                          .attention_rate = a.rate(),
                          .experts_rate = e.rate(),
                          .attention_part = a.rate() / best_attention,
                          .experts_part = e.rate() / best_experts};
        point.both_well = point.attention_part >= well && point.experts_part >= well;
        join.points.push_back(point);
      }
  std::ranges::sort(join.points, {}, &JoinedPoint::sequences);
  for (const JoinedPoint& point : join.points)
    if (point.both_well && !join.smallest) join.smallest = point.sequences;
  return join;
}

std::vector<HeadSize> head_sizes_of(const std::vector<Curve>& profiled) {
  const Curve* shapes = with_prefix(profiled, "attention_shapes.");
  if (shapes == nullptr) shapes = with_prefix(profiled, "attention.");
  return shapes == nullptr ? std::vector<HeadSize>() : rank_head_sizes(*shapes);
}

std::optional<Join> join_of(const std::vector<Curve>& profiled) {
  const Curve* attention = with_prefix(profiled, "join_attention.");
  const Curve* experts = with_prefix(profiled, "join_experts.");
  if (attention == nullptr || experts == nullptr) return std::nullopt;
  return join_micro_batches(*attention, *experts);
}

}  // namespace piper::cluster
