#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cluster/cluster.h>

#include <algorithm>

namespace piper::cluster {
namespace {

constexpr double kLatencyShare = 0.02;  // of a message's time

}  // namespace

void Watch::note(const std::string& curve, const std::string& axis, double asked, double low,
                 double high) {
  if (asked >= low && asked <= high) return;
  const auto same = [&](const Outside& o) { return o.curve == curve && o.axis == axis; };
  const auto known = std::ranges::find_if(outside_, same);
  if (known == outside_.end()) {
    outside_.push_back({curve, axis, asked, asked, low, high});
    return;
  }
  known->asked_low = std::min(known->asked_low, asked);
  known->asked_high = std::max(known->asked_high, asked);
}

void Watch::note_link(const std::string& link, double bytes) {
  const auto range = std::ranges::find(links_, link, &Range::link);
  if (range != links_.end()) note(link, "bytes", bytes, range->low, range->high);
}

void Watch::set_range(const std::string& link, double low, double high) {
  links_.push_back({link, low, high});
}

Json to_json(const std::vector<Outside>& outside) {
  Json out = Json::array();
  for (const Outside& o : outside)
    out.push_back({{"curve", o.curve},
                   {"axis", o.axis},
                   {"asked_low", o.asked_low},
                   {"asked_high", o.asked_high},
                   {"measured_low", o.measured_low},
                   {"measured_high", o.measured_high}});
  return out;
}

std::string to_text(const std::vector<Outside>& outside) {
  std::string text;
  for (const Outside& o : outside) {
    const auto written = [&](double value) {
      return o.axis == "bytes" ? format_bytes(value) : fmt::format("{:.6g}", value);
    };
    const std::string asked =
        o.asked_low == o.asked_high
            ? written(o.asked_high)
            : fmt::format("{} to {}", written(o.asked_low), written(o.asked_high));
    text += fmt::format("{}{}: {} {} (measured {} to {})", text.empty() ? "" : "; ", o.curve,
                        o.axis, asked, written(o.measured_low), written(o.measured_high));
  }
  return text;
}

Cluster watched(const Cluster& cluster, std::shared_ptr<Watch> watch) {
  Cluster copy = cluster;
  const auto keep = [&](Grid& grid, const std::string& name) {
    grid.watch = watch;
    grid.watched_as = name;
  };
  for (auto& [precision, compute] : copy.compute) {
    keep(compute.gemm, fmt::format("compute.{}.gemm", precision));
    keep(compute.attention, fmt::format("compute.{}.attention", precision));
    keep(compute.attention_backward, fmt::format("compute.{}.attention_backward", precision));
  }
  keep(copy.element_wise, "element_wise");
  keep(copy.copy, "copy");
  for (const Curve& curve : copy.curves) {
    if (!curve.fit || curve.points.empty()) continue;
    const auto by_amount = [](const CurvePoint& a, const CurvePoint& b) {
      return a.amount < b.amount;
    };
    const auto [low, high] = std::ranges::minmax_element(curve.points, by_amount);
    // Where the smallest message is all latency, a smaller one is too.
    const AlphaBeta& line = curve.fit->line;
    const bool only_latency =
        low->amount < kLatencyShare * line.latency_seconds * line.bytes_per_second;
    watch->set_range(curve.name, only_latency ? 0 : low->amount, high->amount);
  }
  copy.watch = std::move(watch);
  return copy;
}

}  // namespace piper::cluster
