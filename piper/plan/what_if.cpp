#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/suggest.h>
#include <piper/plan/what_if.h>

#include <charconv>
#include <cmath>
#include <vector>

namespace piper::plan {
namespace {

using cluster::Cluster;
using cluster::Level;

const std::vector<std::string> kQuantities = {"memory",    "memory_bandwidth", "compute", "nics",
                                              "bandwidth", "latency",          "device"};

[[noreturn]] void refuse(const std::string& change, const std::string& allowed) {
  throw InvalidInput(fmt::format("--what-if is '{}'; allowed: {}", change, allowed));
}

// The number at the start of `text`; what follows it goes to `rest`.
double number(const std::string& change, const std::string& text, std::string& rest) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value <= 0)
    refuse(change, "a factor above 0 after the sign of equality, as in x2");
  rest.assign(end, text.data() + text.size());
  return value;
}

// Rates and latencies of a description lie within 18 orders of magnitude. With six more on either
// side no price is zero or beyond what a double holds.
constexpr double kLeastFactor = 1e-6, kMostFactor = 1e6;

double factor(const std::string& change, const std::string& how) {
  std::string rest;
  if (how.empty() || how[0] != 'x') refuse(change, "a factor, as in x2 or x0.5");
  const double value = number(change, how.substr(1), rest);
  if (!rest.empty()) refuse(change, "a factor, as in x2 or x0.5");
  if (value < kLeastFactor || value > kMostFactor)
    refuse(change, fmt::format("a factor from {} to {}", kLeastFactor, kMostFactor));
  return value;
}

int64_t memory(const std::string& change, const std::string& how, int64_t now) {
  double bytes = 0;
  if (!how.empty() && how[0] == 'x') {
    bytes = static_cast<double>(now) * factor(change, how);
  } else {
    std::string unit;
    bytes = number(change, how, unit);
    if (unit == "GB")
      bytes *= 1e9;
    else if (unit == "GiB")
      bytes *= static_cast<double>(int64_t{1} << 30);
    else
      refuse(change, "a factor (x0.5) or bytes with a unit (96GB, 96GiB)");
  }
  if (!(bytes >= 1 && bytes < 1e18)) refuse(change, "1 byte to 1e18");
  return static_cast<int64_t>(bytes);
}

void scale_compute(Cluster& c, double by) {
  for (auto& [precision, compute] : c.compute) {
    compute.peak_flops_per_second *= by;
    for (cluster::Grid* grid : {&compute.gemm, &compute.attention, &compute.attention_backward})
      for (double& rate : grid->rate) rate *= by;
  }
}

// Bandwidth of what goes between devices follows its NICs.
void scale_bandwidth(Level& level, double by) {
  level.link.bytes_per_second *= by;
  level.nic_bytes_per_second *= by;
}

void scale_nics(const std::string& change, Cluster& c, double by) {
  bool any = false;
  for (Level& level : c.levels) {
    if (level.num_nics == 0) continue;
    const double nics = static_cast<double>(level.num_nics) * by;
    if (nics != std::floor(nics) || nics < 1)
      refuse(change,
             fmt::format("a whole number of NICs; level {} has {}", level.name, level.num_nics));
    level.num_nics = static_cast<int64_t>(nics);
    level.link.bytes_per_second *= by;
    any = true;
  }
  if (!any) refuse(change, "bandwidth=x2: the description counts no NICs");
}

template <class F>
void for_levels(const std::string& change, Cluster& c, const std::string& name, F scale) {
  std::vector<std::string> names;
  bool any = false;
  for (Level& level : c.levels) {
    names.push_back(level.name);
    if (!name.empty() && level.name != name) continue;
    scale(level);
    any = true;
  }
  if (!any)
    refuse(change, fmt::format("a level of {}: {}{}", c.name, fmt::join(names, ", "),
                               did_you_mean(name, names)));
}

void take_device(Cluster& c, const std::string& name) {
  const Cluster other = cluster::load_cluster(name);
  c.device = other.device;
  c.kind = other.kind;
  c.memory_bytes = other.memory_bytes;
  c.memory_bytes_per_second = other.memory_bytes_per_second;
  c.fixed_task_seconds = other.fixed_task_seconds;
  c.compute = other.compute;
  c.element_wise = other.element_wise;
  c.copy = other.copy;
}

}  // namespace

Cluster changed(const Cluster& cluster, const std::string& change) {
  const size_t equals = change.find('=');
  const std::string what = change.substr(0, equals);
  const std::string how = equals == std::string::npos ? "" : change.substr(equals + 1);
  const size_t dot = what.find('.');
  const std::string quantity = what.substr(0, dot);
  const std::string level = dot == std::string::npos ? "" : what.substr(dot + 1);
  const bool by_level = quantity == "bandwidth" || quantity == "latency";
  if (equals == std::string::npos || (dot != std::string::npos && !by_level))
    refuse(change, fmt::format("WHAT=HOW, WHAT one of {}", fmt::join(kQuantities, ", ")));
  Cluster c = cluster;
  c.name = fmt::format("{} with {}", cluster.name, change);
  if (quantity == "memory") {
    c.memory_bytes = memory(change, how, c.memory_bytes);
  } else if (quantity == "memory_bandwidth") {
    const double by = factor(change, how);
    c.memory_bytes_per_second *= by;
    for (cluster::Grid* grid : {&c.element_wise, &c.copy})
      for (double& rate : grid->rate) rate *= by;
  } else if (quantity == "compute") {
    scale_compute(c, factor(change, how));
  } else if (quantity == "nics") {
    scale_nics(change, c, factor(change, how));
  } else if (quantity == "bandwidth") {
    const double by = factor(change, how);
    for_levels(change, c, level, [&](Level& l) { scale_bandwidth(l, by); });
  } else if (quantity == "latency") {
    const double by = factor(change, how);
    for_levels(change, c, level, [&](Level& l) { l.link.latency_seconds *= by; });
  } else if (quantity == "device") {
    take_device(c, how);
  } else {
    refuse(change, fmt::format("WHAT=HOW, WHAT one of {}{}", fmt::join(kQuantities, ", "),
                               did_you_mean(quantity, kQuantities)));
  }
  return c;
}

}  // namespace piper::plan
