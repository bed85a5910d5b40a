#include <piper/base/error.h>
#include <piper/cluster/slowed.h>

#include <array>
#include <cmath>
#include <string_view>

namespace piper::cluster {
namespace {

void slow(Grid& grid, double factor) {
  for (double& rate : grid.rate) rate /= factor;
}

// numbers[...] of collectives inside a node: "all_to_all_latency_seconds" and the like.
constexpr std::array<std::string_view, 6> kInNode = {"all_to_all",     "all_reduce", "all_gather",
                                                     "reduce_scatter", "node_ring",  "message"};
// Between nodes.
constexpr std::array<std::string_view, 2> kBetweenNodes = {"message_gap", "ring_step"};
constexpr std::array<std::string_view, 2> kComputing = {"optimizer_bytes", "exponential_elements"};

template <size_t N>
bool begins_with_one_of(const std::string& name,
                        const std::array<std::string_view, N>& beginnings) {
  for (const std::string_view beginning : beginnings)
    if (name.starts_with(beginning)) return true;
  return false;
}

}  // namespace

Cluster slowed(const Cluster& cluster, double compute, const std::vector<double>& links) {
  const auto link = [&](size_t level) { return level < links.size() ? links[level] : 1.0; };
  PIPER_CHECK(compute > 0 && std::isfinite(compute));
  Cluster slower = cluster;
  for (auto& [precision, rates] : slower.compute) {
    slow(rates.gemm, compute);
    slow(rates.attention, compute);
    slow(rates.attention_backward, compute);
    rates.gemm_efficiency /= compute;
  }
  slow(slower.element_wise, compute);
  slow(slower.copy, compute);
  slower.memory_bytes_per_second /= compute;
  slower.fixed_task_seconds *= compute;
  for (size_t level = 0; level < slower.levels.size(); ++level) {
    PIPER_CHECK(link(level) > 0 && std::isfinite(link(level)));
    Level& l = slower.levels[level];
    l.link.latency_seconds *= link(level);
    l.link.bytes_per_second /= link(level);
    l.nic_bytes_per_second /= link(level);
  }
  for (auto& [name, value] : slower.numbers) {
    const double factor = begins_with_one_of(name, kBetweenNodes) ? link(1)
                          : begins_with_one_of(name, kInNode)     ? link(0)
                          : begins_with_one_of(name, kComputing)  ? compute
                                                                  : 1.0;
    if (name.ends_with("_per_second"))
      value /= factor;
    else
      value *= factor;
  }
  return slower;
}

}  // namespace piper::cluster
