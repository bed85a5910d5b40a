#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/executor/clock.h>
#include <piper/executor/cores.h>
#include <piper/executor/peer_access.h>
#include <piper/nn/counting_allocator.h>
#include <piper/nn/product.h>
#include <piper/profile/calibrate.h>
#include <piper/profile/measure_compute.h>
#include <piper/profile/measure_links.h>
#include <piper/profile/measure_products.h>
#include <piper/profile/profile.h>
#include <piper/profile/shape_curves.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace piper::profile {
namespace {

// These are parts of the budget. The rest is for what points take to begin; calibration is not
// among it: on a slow machine it stops after so many budgets.
constexpr double kMostForCalibration = 3;
constexpr int64_t kCalibrationPoints = 25;  // of the progress, a precision
constexpr double kForPrices = 0.62, kForLinks = 0.15, kForProducts = 0.08;
constexpr double kForPricesOfFull = 0.12, kForJoinOfFull = 0.12, kForLinksOfFull = 0.2,
                 kForShapesOfFull = 0.5;
constexpr double kOperandShare = 0.25;  // of a rank's memory that one point may take

// Several curves that share a part of the budget.
struct Part {
  double budget_share = 0;
  std::vector<BenchCurve> curves;
};

cluster::Cluster describe(const ProfileOptions& options, int64_t num_cores) {
  cluster::Cluster host;
  const std::string processor = host_processor();
  host.name = "here";
  if (!options.device.is_cpu()) {
    host.description = options.num_ranks == 1
                           ? fmt::format("{} of this machine", options.device.device.str())
                           : fmt::format("{} devices of this machine, the first of them {}",
                                         options.num_ranks, options.device.device.str());
    host.device = options.device.device.str();
    host.kind = "gpu";
    host.memory_bytes = std::max<int64_t>(options.device.memory_bytes(), 1);
    return host;
  }
  host.description =
      fmt::format("this machine: {} ranks as threads on {} cores", options.num_ranks, num_cores);
  host.device = processor.empty() ? "CPU rank" : fmt::format("thread on {}", processor);
  host.kind = "cpu";
  host.memory_bytes = host_memory_bytes() / options.num_ranks;
  host.cores_per_node = std::min(num_cores, options.num_ranks);
  return host;
}

// What must be equal for points of a partial file to be taken over.
Json measured_with(const ProfileOptions& options, const cluster::Cluster& host) {
  Json precisions = Json::array();
  for (const strategy::Precision precision : options.precisions)
    precisions.push_back(strategy::name(precision));
  return {{"device", host.device},
          {"ranks", options.num_ranks},
          {"cores", host.cores_per_node},
          {"memory_bytes", host.memory_bytes},
          {"precisions", precisions},
          {"full", options.full},
          {"tight", options.tight},
          {"model", options.full ? options.model->name : ""},
          {"hidden", options.full ? options.model->hidden : 0},
          {"sequence", options.full ? options.sequence : 0}};
}

class Profiler {
 public:
  Profiler(const ProfileOptions& options, Profile& profile)
      : options_(options), profile_(profile), host_(profile.cluster) {
    if (!options.partial.empty())
      journal_ = ProfileJournal(options.partial, measured_with(options, host_), options.fresh);
    profile_.num_restored = journal_.num_restored();
    links_ = {.num_ranks = options.num_ranks,
              .devices = options.devices,
              .full = options.full,
              .tight = options.tight,
              .operand_bytes = static_cast<double>(host_.memory_bytes) * kOperandShare};
    parts_ = parts();
    for (const Part& part : parts_)
      for (const BenchCurve& curve : part.curves) profile_.num_points += std::ssize(curve.points);
    if (options_.links.empty()) profile_.num_points += num_link_points(links_);
    num_steps_ = profile_.num_points + kCalibrationPoints * std::ssize(options_.precisions);
  }

  void run() {
    for (const Part& part : parts_) {
      measure_part(part);
      if (const auto choice = product_choice_of(host_.curves)) nn::choose_products(choice);
    }
    bool first = true;
    for (const strategy::Precision precision : options_.precisions) {
      fill_prices(host_.curves, precision, first, host_);
      first = false;
    }
    // How much times scatter, and the hand-over of cores, stay as the last precision found them.
    for (const strategy::Precision precision : options_.precisions) {
      const int64_t before = done_;
      calibrate_segments(host_, precision,
                         {.num_ranks = num_computing(),
                          .num_cores = host_.cores_per_node,
                          .budget_seconds = kMostForCalibration * options_.budget_seconds,
                          .progress =
                              [&](int64_t done, int64_t all) {
                                show("whole passes", before + kCalibrationPoints * done / all);
                              },
                          .device = options_.device});
      show("whole passes", before + kCalibrationPoints);
    }
    fill_links();
  }

 private:
  bool on_cpu() const { return options_.device.is_cpu(); }
  // Ranks that compute at once: they share a host's cores and memory, accelerators share nothing.
  int64_t num_computing() const { return on_cpu() ? options_.num_ranks : 1; }
  bool computes_fp32() const {
    return std::ranges::count(options_.precisions, strategy::Precision::kFp32) > 0;
  }

  std::vector<Part> parts() {
    Part prices{options_.full ? kForPricesOfFull : kForPrices, {}};
    Part join{kForJoinOfFull, {}}, shapes{kForShapesOfFull, {}};
    const auto append = [](Part& part, std::vector<BenchCurve> curves) {
      for (BenchCurve& curve : curves) part.curves.push_back(std::move(curve));
    };
    for (const strategy::Precision precision : options_.precisions) {
      append(prices, price_curves(precision, options_.device));
      if (!options_.full) {
        if (!on_cpu() && precision == strategy::Precision::kBf16)
          append(prices, expert_curves(precision, options_.device, links_.operand_bytes));
        continue;
      }
      const ModelShapes of{.model = *options_.model,
                           .sequence = options_.sequence,
                           .ep = profile_.ep,
                           .operand_bytes = links_.operand_bytes};
      append(join, join_curves(precision, options_.device, of));
      append(shapes, shape_curves(precision, options_.device, of));
    }
    std::vector<Part> all;
    if (options_.choose_products && on_cpu() && computes_fp32())
      if (BenchCurve products = product_library_curve(options_.device); !products.points.empty())
        all.push_back({kForProducts, {std::move(products)}});
    all.push_back(std::move(prices));
    if (options_.full) {
      all.push_back(std::move(join));
      all.push_back(std::move(shapes));
    }
    return all;
  }

  void measure_part(const Part& part) {
    int64_t num_points = 0;
    for (const BenchCurve& curve : part.curves) num_points += std::ssize(curve.points);
    TimeShares shares(options_.budget_seconds * part.budget_share, num_points,
                      executor::now_seconds);
    const Measuring how{.num_ranks = num_computing(),
                        .num_cores = host_.cores_per_node,
                        .device = options_.device,
                        .tight = options_.tight,
                        .shares = &shares,
                        .journal = &journal_,
                        .after_point = [this](const std::string& curve) { count(curve); }};
    for (const BenchCurve& curve : part.curves) host_.curves.push_back(measure(curve, how));
  }

  // The level of one rank, which has nobody to speak to. A level states a bandwidth: the copy's.
  cluster::Level alone(const std::string& name) const {
    return {.name = name,
            .num_members = 1,
            .link = {.latency_seconds = 0, .bytes_per_second = host_.copy.rate.back()}};
  }

  void fill_links() {
    if (options_.num_ranks == 1) {
      host_.levels = {alone(on_cpu() ? "node" : "device")};
      return;
    }
    TimeShares shares(options_.budget_seconds * (options_.full ? kForLinksOfFull : kForLinks),
                      num_link_points(links_), executor::now_seconds);
    std::vector<cluster::Curve> curves = options_.links;
    if (curves.empty())
      curves =
          measure_links(links_, shares, journal_, [this](const std::string& what) { count(what); });
    for (cluster::Curve& curve : curves) host_.curves.push_back(std::move(curve));
    const auto line = [&](const char* name) {
      return cluster::find_curve(host_.curves, name)->fit->line;
    };
    host_.levels = {
        {.name = "node", .num_members = options_.num_ranks, .link = line("point-to-point")}};
    host_.numbers["all_to_all_latency_seconds"] = line("all-to-all").latency_seconds;
    host_.numbers["all_to_all_bytes_per_second"] = line("all-to-all").bytes_per_second;
    host_.numbers["all_reduce_latency_seconds"] = line("all-reduce").latency_seconds;
    host_.numbers["all_reduce_bytes_per_second"] = line("all-reduce").bytes_per_second;
    for (const auto& [curve, key] :
         {std::pair{"reduce-scatter", "reduce_scatter"}, std::pair{"all-gather", "all_gather"}}) {
      if (cluster::find_curve(host_.curves, curve) == nullptr) continue;  // half an all-reduce then
      host_.numbers[std::string(key) + "_latency_seconds"] = line(curve).latency_seconds;
      host_.numbers[std::string(key) + "_bytes_per_second"] = line(curve).bytes_per_second;
    }
  }

  void count(const std::string& curve) { show(curve, done_ + 1); }
  void show(const std::string& what, int64_t done) {
    done_ = done;
    if (options_.progress)
      options_.progress(what, static_cast<double>(done_) / static_cast<double>(num_steps_));
  }

  const ProfileOptions& options_;
  Profile& profile_;
  cluster::Cluster& host_;
  ProfileJournal journal_;
  LinkOptions links_;
  std::vector<Part> parts_;
  int64_t num_steps_ = 0, done_ = 0;  // of the progress
};

void check(const ProfileOptions& options) {
  if (options.num_ranks < 1)
    throw InvalidInput(fmt::format("--ranks is {}; allowed: at least 1", options.num_ranks));
  const int64_t num_devices = std::max<int64_t>(1, std::ssize(options.devices));
  if (!options.device.is_cpu() && options.num_ranks != num_devices)
    throw InvalidInput(
        fmt::format("--ranks is {}, and --device names {}; allowed: as many, or no "
                    "--ranks",
                    options.num_ranks, num_devices));
  executor::let_devices_meet(options.devices);
  PIPER_CHECK(!options.full || options.model.has_value(), "a full profile needs a model");
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
  check(options);
  nn::install_counting_allocator();  // training runs on its blocks, so the measurements do
  const double start = executor::now_seconds();
  Profile profile;
  profile.cluster =
      describe(options, options.num_cores > 0 ? options.num_cores : executor::num_host_cores());
  if (options.full) profile.ep = experts_among(*options.model, options.num_ranks);
  Profiler(options, profile).run();
  nn::choose_products(std::nullopt);
  cluster::Cluster& host = profile.cluster;
  for (const char* fact : {"device", "memory_bytes", "cores_per_node"})
    host.sources.push_back({fact, "read from the operating system"});
  for (const char* fact : {"compute", "element_wise", "copy", "fixed_task_seconds",
                           "memory_bytes_per_second", "levels", "numbers", "curves"})
    host.sources.push_back({fact, "measured by piper profile with all ranks busy at once"});
  profile.seconds = executor::now_seconds() - start;
  return profile;
}

}  // namespace piper::profile
