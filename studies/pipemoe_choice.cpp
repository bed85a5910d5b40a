#include <piper/base/error.h>
#include <piper/cluster/fit.h>
#include <studies/pipemoe_choice.h>

#include <algorithm>

namespace piper::studies {

namespace pipemoe = paper::pipemoe;
using cost::MoePass;
using cost::MoeSchedulePrice;

namespace {

struct FittedTask {
  pipemoe::Task task;
  double worst_error = 0;
};
struct FittedLayer {
  FittedTask all_to_all, experts;
  pipemoe::Layer layer() const { return {all_to_all.task, experts.task}; }
};

// `seconds`: of all chunks. Where a layer cannot be cut its start-up is not to be told.
template <class Seconds>
FittedTask fitted(const std::vector<MoeSchedulePrice>& prices, const Seconds& seconds) {
  std::vector<cluster::Sample> samples;
  for (size_t i = 1; i <= prices.size(); i *= 2) {
    const auto n = static_cast<double>(i);
    samples.push_back({1 / n, seconds(prices[i - 1]) / n});
  }
  if (samples.size() == 1) return {{0, samples.front().seconds}, 0};
  if (samples.front().seconds <= 0) return {};  // a group of one
  const cluster::Fit fit = cluster::fit_alpha_beta(samples);
  return {{fit.line.latency_seconds, 1 / fit.line.bytes_per_second}, fit.worst_residual};
}

FittedLayer fitted(const std::vector<MoeSchedulePrice>& prices, MoePass MoeSchedulePrice::*pass) {
  return {fitted(prices, [&](const MoeSchedulePrice& p) { return (p.*pass).exchange / 2; }),
          fitted(prices,
                 [&](const MoeSchedulePrice& p) { return (p.*pass).gather + (p.*pass).experts; })};
}

}  // namespace

PipemoeChoice choose_as_pipemoe(const std::vector<MoeSchedulePrice>& prices) {
  PIPER_CHECK(!prices.empty(), "no prices");
  const FittedLayer forward = fitted(prices, &MoeSchedulePrice::forward);
  PipemoeChoice choice{.forward = forward.layer(),
                       .backward = fitted(prices, &MoeSchedulePrice::backward).layer(),
                       .all_to_all_error = forward.all_to_all.worst_error,
                       .experts_error = forward.experts.worst_error,
                       .chunks = pipemoe::best_chunks(forward.layer(), std::ssize(prices)),
                       .price = {},
                       .price_of_both = {},
                       .best = prices[cost::cheapest(prices)]};
  const auto by_model = [&](const MoeSchedulePrice& p) {
    return pipemoe::seconds(choice.forward, p.num_chunks) +
           pipemoe::seconds(choice.backward, p.num_chunks);
  };
  choice.price_of_both = *std::ranges::min_element(prices, {}, by_model);
  choice.chunks_of_both = choice.price_of_both.num_chunks;
  choice.price = prices[static_cast<size_t>(choice.chunks.num_chunks - 1)];
  return choice;
}

}  // namespace piper::studies
