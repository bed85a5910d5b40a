#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cost/random.h>
#include <piper/sim/disturbance.h>
#include <piper/sim/simulate.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace piper::sim {
namespace {

constexpr uint64_t kWholeRank = ~uint64_t{0};  // in place of a task's index

// Draws a log-normal factor of mean 1; the same key always gives the same factor.
double log_normal(double sigma, std::initializer_list<uint64_t> key) {
  return std::exp(sigma * (cost::Random(key).normal() - sigma / 2));
}

}  // namespace

void disturb(const schedule::StepGraph& step, const Disturbance& d, cost::Prices& prices) {
  const graph::Graph& graph = step.graph;
  std::vector<double> factor(static_cast<size_t>(graph.num_ranks()), 1);
  for (const Straggler& straggler : d.stragglers) {
    if (!straggler.rank.valid() || straggler.rank.value >= graph.num_ranks())
      throw InvalidInput(fmt::format("straggler {} is no rank; allowed: 0 to {}",
                                     straggler.rank.value, graph.num_ranks() - 1));
    factor[straggler.rank.index()] *= straggler.factor;
  }
  for (int64_t rank = 0; rank < graph.num_ranks(); ++rank) {
    double slower = factor[static_cast<size_t>(rank)];
    if (d.rank_sigma > 0)
      slower *= log_normal(d.rank_sigma, {d.seed, static_cast<uint64_t>(rank), kWholeRank});
    if (d.jitter_sigma == 0 && slower == 1) continue;
    const std::vector<graph::TaskId>& tasks = graph.stream(Rank(rank), graph::Stream::kCompute);
    for (size_t i = 0; i < tasks.size(); ++i) {
      double& seconds = prices.seconds[tasks[i].index()];
      seconds *= slower;
      if (d.jitter_sigma == 0) continue;
      seconds *= log_normal(d.jitter_sigma, {d.seed, static_cast<uint64_t>(rank), i});
    }
  }
}

graph::Timeline simulate_scattered(const schedule::StepGraph& step, const cost::Prices& prices,
                                   const cost::Scatter& scatter, bool keep_memory) {
  graph::Timeline calm = simulate(step, prices, keep_memory);
  if (scatter.none()) return calm;
  std::vector<graph::Timeline> drawn;
  for (uint64_t seed = 0; seed < kScatterDraws; ++seed) {
    cost::Prices scattered = prices;
    disturb(
        step,
        {.stragglers = {}, .jitter_sigma = scatter.task, .rank_sigma = scatter.rank, .seed = seed},
        scattered);
    drawn.push_back(simulate(step, scattered, keep_memory));
  }
  const auto middle = drawn.begin() + kScatterDraws / 2;
  std::ranges::nth_element(drawn, middle, {}, &graph::Timeline::seconds);
  middle->peak_bytes = std::move(calm.peak_bytes);
  return std::move(*middle);
}

}  // namespace piper::sim
