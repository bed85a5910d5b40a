// parse_cluster: the JSON form, its limits, and every complaint about it.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cluster/cluster.h>
#include <piper/cluster/read_curves.h>

#include <algorithm>
#include <array>
#include <set>

namespace piper::cluster {
namespace {

// Far beyond any machine, and small enough that products and quotients stay finite.
constexpr double kMaxSeconds = 3600;  // of one latency
constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int64_t kMaxDevices = (int64_t{1} << 31) - 1;  // ids of devices and ranks have 32 bits
constexpr size_t kMaxLevels = 16;

const std::vector<std::string> kPrecisions = {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4"};

// Clocks above the stated ones and rounding; no description that comes with Piper is above 0.9.
constexpr double kMostOfPeak = 1.05;

// A GEMM faster than the device can be is a slip of a unit, and plans made of it are nonsense.
void check_against_peak(ObjectReader& reader, const Compute& compute) {
  // A peak that is itself refused says nothing about the others.
  if (compute.gemm.rate.empty() ||
      reader.raw("peak_flops_per_second") != compute.peak_flops_per_second)
    return;
  const double most = *std::ranges::max_element(compute.gemm.rate);
  if (most > kMostOfPeak * compute.peak_flops_per_second)
    reader.problem("gemm_flops_per_second.values",
                   fmt::format("reach {:g}; allowed: at most {} times 'peak_flops_per_second' {:g}",
                               most, kMostOfPeak, compute.peak_flops_per_second));
}

Compute parse_one_compute(const Json& json, const std::string& path, Problems* problems) {
  ObjectReader reader(json, path, problems);
  Compute compute;
  compute.peak_flops_per_second = reader.number("peak_flops_per_second", 1, kMaxRate);
  compute.gemm_efficiency = reader.number("gemm_efficiency", 0, 1, 0);
  compute.gemm = parse_grid(reader, "gemm_flops_per_second", {"m", "n", "k"});
  compute.attention = parse_grid(reader, "attention_flops_per_second", {"sequence", "head_dim"});
  compute.attention_backward =
      parse_grid(reader, "attention_backward_flops_per_second", {"sequence", "head_dim"});
  check_against_peak(reader, compute);
  reader.refuse_unknown();
  return compute;
}

std::map<std::string, Compute> parse_compute(ObjectReader& parent) {
  std::map<std::string, Compute> compute;
  if (!parent.has("compute")) parent.problem("compute", "is missing");
  const Json* json = parent.object("compute");
  if (json == nullptr) return compute;
  ObjectReader reader(*json, parent.path("compute"), parent.problems());
  for (const std::string& precision : kPrecisions)
    if (const Json* one = reader.object(precision))
      compute[precision] = parse_one_compute(*one, reader.path(precision), reader.problems());
  if (json->empty()) parent.problem("compute", "is empty; allowed: at least one precision");
  reader.refuse_unknown();
  return compute;
}

Level parse_level(const Json& json, const std::string& path, Problems* problems) {
  ObjectReader reader(json, path, problems);
  Level level;
  level.name = reader.text("name");
  if (json.is_object() && reader.has("name") && level.name.empty())
    reader.problem("name", "is empty");
  level.num_members = reader.integer("num_members", 1, kMaxDevices);
  level.link.bytes_per_second = reader.number("bandwidth_bytes_per_second", 1, kMaxRate);
  level.link.latency_seconds = reader.number("latency_seconds", 0, kMaxSeconds);
  level.num_nics = reader.integer("num_nics", 0, 1'000'000, 0);
  level.nic_bytes_per_second = reader.number("nic_bytes_per_second", 0, kMaxRate, 0);
  if (level.nic_bytes_per_second > 0 && level.num_nics == 0)
    reader.problem("nic_bytes_per_second", "is given without 'num_nics'");
  // Left out it is taken from the level's bandwidth; a NIC that moves nothing is neither.
  if (level.nic_bytes_per_second == 0 && level.num_nics > 0 && reader.has("nic_bytes_per_second"))
    reader.problem("nic_bytes_per_second",
                   "is 0 with 'num_nics'; allowed: more than 0, or leave the key out");
  reader.refuse_unknown();
  return level;
}

std::vector<Level> parse_levels(ObjectReader& parent) {
  std::vector<Level> levels;
  if (!parent.has("levels")) parent.problem("levels", "is missing");
  const Json* json = parent.array("levels");
  if (json == nullptr) return levels;
  if (json->empty() || json->size() > kMaxLevels) {
    parent.problem("levels",
                   fmt::format("has {} entries; allowed: 1 to {}", json->size(), kMaxLevels));
    return levels;
  }
  std::set<std::string> names;
  int64_t devices = 1;
  for (size_t i = 0; i < json->size(); ++i) {
    const std::string path = fmt::format("{}[{}]", parent.path("levels"), i);
    levels.push_back(parse_level((*json)[i], path, parent.problems()));
    if (!levels.back().name.empty() && !names.insert(levels.back().name).second)
      parent.problems()->add(path + ".name", fmt::format("'{}' appears twice", levels.back().name));
    if (devices <= kMaxDevices) devices *= levels.back().num_members;
  }
  if (devices > kMaxDevices)
    parent.problem("levels", fmt::format("hold more than {} devices together", kMaxDevices));
  return levels;
}

// What a further constant may be, by the unit in its name.
struct Unit {
  const char* text;
  bool is_prefix;
  double least, most;
};
constexpr std::array kUnits = {
    Unit{"measured_over_priced.", true, 1e-6, 1e6}, Unit{"_per_second", false, 1, kMaxRate},
    Unit{"_seconds", false, 0, kMaxSeconds}, Unit{"_bytes", false, 0, 1e15},
    Unit{"_fraction", false, 0, 1},
    // A standard deviation: 0 where all are alike.
    Unit{"_scatter_ratio", false, 0, 1e6}, Unit{"_ratio", false, 1e-6, 1e6}};

std::map<std::string, double> parse_numbers(ObjectReader& parent) {
  std::map<std::string, double> numbers;
  const Json* json = parent.object("numbers");
  if (json == nullptr) return numbers;
  ObjectReader reader(*json, parent.path("numbers"), parent.problems());
  for (const auto& [name, value] : json->items()) {
    // By name: a lambda that takes a structured binding from outside is beyond the clang of the
    // fuzz preset.
    const auto unit = std::ranges::find_if(kUnits, [&name = name](const Unit& u) {
      return u.is_prefix ? name.starts_with(u.text) : name.ends_with(u.text);
    });
    if (unit == kUnits.end()) {
      reader.ignore(name);
      reader.problem(name, fmt::format("ends in no known unit; allowed: names that end in "
                                       "_per_second, _seconds, _bytes, _fraction or _ratio, or "
                                       "begin with measured_over_priced."));
      continue;
    }
    numbers[name] = reader.number(name, unit->least, unit->most);
  }
  return numbers;
}

std::vector<Source> parse_sources(ObjectReader& parent) {
  std::vector<Source> sources;
  const Json* json = parent.object("sources");
  if (json == nullptr) return sources;
  ObjectReader reader(*json, parent.path("sources"), parent.problems());
  for (const auto& [fact, value] : json->items()) sources.push_back({fact, reader.text(fact)});
  return sources;
}

}  // namespace

Cluster parse_cluster(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  Cluster cluster;
  cluster.name = reader.text("name");
  cluster.description = reader.text("description", "");
  cluster.device = reader.text("device");
  cluster.kind = reader.choice("kind", {"gpu", "cpu"});
  cluster.memory_bytes = reader.integer("memory_bytes", 1, kMaxBytes);
  cluster.memory_bytes_per_second = reader.number("memory_bytes_per_second", 1, kMaxRate);
  cluster.fixed_task_seconds = reader.number("fixed_task_seconds", 0, kMaxSeconds, 0);
  cluster.cores_per_node = reader.integer("cores_per_node", 0, 1'000'000, 0);
  cluster.compute = parse_compute(reader);
  cluster.element_wise = parse_grid(reader, "element_wise_bytes_per_second", {"bytes"});
  cluster.copy = parse_grid(reader, "copy_bytes_per_second", {"bytes"});
  cluster.levels = parse_levels(reader);
  cluster.numbers = parse_numbers(reader);
  cluster.curves = parse_curves(reader);
  cluster.sources = parse_sources(reader);
  reader.refuse_unknown();
  problems.finish();
  return cluster;
}

}  // namespace piper::cluster
