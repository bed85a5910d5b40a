#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/comm/bench.h>
#include <piper/comm/local.h>
#include <piper/nn/counting_allocator.h>
#include <piper/runtime/calibrate.h>
#include <piper/runtime/cores.h>
#include <piper/runtime/measure_compute.h>
#include <piper/runtime/player.h>
#include <piper/runtime/profile.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace piper::runtime {
namespace {

constexpr double kShareOfCommunication = 0.15;  // of the budget
constexpr double kNumComputePoints = 115;       // about; only scales the time a point gets
const std::vector<int64_t> kMessageBytes = {256, 4096, 65536, 524288, 4194304, 16777216};

LinkProfile fitted(const std::vector<comm::Sample>& measured, double share_that_leaves) {
  LinkProfile link;
  for (const comm::Sample& sample : measured)
    link.samples.push_back({static_cast<double>(sample.bytes) * share_that_leaves, sample.seconds});
  link.fit = cluster::fit_alpha_beta(link.samples);
  return link;
}

void measure_links(Profile& profile, const ProfileOptions& options) {
  comm::LocalWorld world(options.num_ranks);
  comm::BenchOptions bench;
  bench.budget_seconds = options.budget_seconds * kShareOfCommunication / 3;
  const double n = static_cast<double>(options.num_ranks);
  if (options.progress) options.progress("point-to-point", 0.85);
  profile.point_to_point = fitted(comm::measure_point_to_point(world, kMessageBytes, bench), 1);
  if (options.progress) options.progress("all-to-all", 0.9);
  profile.all_to_all =
      fitted(comm::measure_all_to_all(world, kMessageBytes, bench), n == 1 ? 1 : (n - 1) / n);
  if (options.progress) options.progress("all-reduce", 0.95);
  profile.all_reduce =
      fitted(comm::measure_all_reduce(world, kMessageBytes, bench), n == 1 ? 1 : (n - 1) / n);
}

cluster::Cluster describe(const ProfileOptions& options, int64_t num_cores) {
  cluster::Cluster host;
  const std::string processor = host_processor();
  host.name = "here";
  host.description =
      fmt::format("this machine: {} ranks as threads on {} cores", options.num_ranks, num_cores);
  host.device = processor.empty() ? "CPU rank" : fmt::format("thread on {}", processor);
  host.kind = "cpu";
  host.memory_bytes = host_memory_bytes() / options.num_ranks;
  host.cores_per_node = std::min(num_cores, options.num_ranks);
  return host;
}

}  // namespace

int64_t host_memory_bytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

std::string host_processor() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name"))
      if (const size_t colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "";
}

Profile profile_host(const ProfileOptions& options) {
  if (options.num_ranks < 1)
    throw InvalidInput(fmt::format("--ranks is {}; allowed: at least 1", options.num_ranks));
  nn::install_counting_allocator();  // training runs on its blocks, so the measurements do
  const double start = now_seconds();
  const int64_t num_cores = options.num_cores > 0 ? options.num_cores : num_host_cores();
  Profile profile;
  cluster::Cluster& host = profile.cluster = describe(options, num_cores);

  MeasureOptions measure{.num_ranks = options.num_ranks, .num_cores = host.cores_per_node};
  const double turns =
      static_cast<double>(options.num_ranks) / static_cast<double>(host.cores_per_node);
  measure.seconds_per_point = options.budget_seconds * (1 - kShareOfCommunication) /
                              kNumComputePoints / turns /
                              static_cast<double>(options.precisions.size()) / 2;
  double done_before = 0;
  measure.progress = [&](const std::string& what, int64_t done, int64_t total) {
    const double part = static_cast<double>(done) / static_cast<double>(total);
    if (options.progress)
      options.progress(
          what, (done_before + part) / static_cast<double>(options.precisions.size()) * 0.85);
  };
  for (const strategy::Precision precision : options.precisions) {
    const ComputeRates rates = measure_compute(precision, measure);
    host.compute[strategy::name(precision)] = rates.compute;
    if (done_before == 0) {
      host.element_wise = rates.element_wise;
      host.copy = rates.copy;
      host.fixed_task_seconds = rates.fixed_task_seconds;
      host.memory_bytes_per_second = rates.element_wise.rate.back();
      host.numbers["exponential_elements_per_second"] = rates.exponential_elements_per_second;
      host.numbers["optimizer_bytes_per_second"] = rates.optimizer_bytes_per_second;
    }
    done_before += 1;
  }
  // The factors of the last precision stay: ranks of one machine train in one.
  for (const strategy::Precision precision : options.precisions)
    calibrate_segments(host, precision,
                       {.num_ranks = options.num_ranks, .num_cores = host.cores_per_node});
  measure_links(profile, options);
  cluster::Level node;
  node.name = "node";
  node.num_members = options.num_ranks;
  node.link = profile.point_to_point.fit.line;
  host.levels = {node};
  host.numbers["all_to_all_latency_seconds"] = profile.all_to_all.fit.line.latency_seconds;
  host.numbers["all_to_all_bytes_per_second"] = profile.all_to_all.fit.line.bytes_per_second;
  host.numbers["all_reduce_latency_seconds"] = profile.all_reduce.fit.line.latency_seconds;
  host.numbers["all_reduce_bytes_per_second"] = profile.all_reduce.fit.line.bytes_per_second;
  for (const char* fact : {"device", "memory_bytes", "cores_per_node"})
    host.sources.push_back({fact, "read from the operating system"});
  for (const char* fact : {"compute", "element_wise", "copy", "fixed_task_seconds",
                           "memory_bytes_per_second", "levels", "numbers"})
    host.sources.push_back({fact, "measured by piper profile with all ranks busy at once"});
  profile.seconds = now_seconds() - start;
  return profile;
}

}  // namespace piper::runtime
