// piper profile: measures this machine and writes a cluster file.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/enum_help.h>
#include <piper/cli/profile_text.h>
#include <piper/cli/read_model.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/cluster/findings.h>
#include <piper/comm/launch.h>
#include <piper/comm/process_world.h>
#include <piper/files/output.h>
#include <piper/model/import.h>
#include <piper/profile/measure_links.h>
#include <piper/profile/profile.h>
#include <piper/report/progress.h>
#include <piper/strategy/runnable.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

namespace piper::cli {
namespace {

constexpr double kBudgetSeconds = 15, kFullBudgetSeconds = 120;
constexpr double kForLinksOfProcesses = 0.25;  // of the budget, on top of it

struct ProfileFlags {
  std::string out, resume, model, device = "cpu";
  std::vector<std::string> ignore;
  std::optional<int64_t> ranks;
  int64_t cores = 0, sequence = 256;
  std::optional<double> budget_seconds;
  double tight = 0.02;
  std::vector<std::string> precisions = {"fp32"};
  bool full = false, fresh = false, points = false, json = false;
};

// The partial file: named, or beside --out, or none.
std::filesystem::path partial_of(const ProfileFlags& flags) {
  if (!flags.resume.empty()) return flags.resume;
  return flags.out.empty() ? "" : flags.out + ".partial";
}

std::vector<strategy::Precision> precisions_of(const std::vector<std::string>& names) {
  std::vector<strategy::Precision> precisions;
  for (const std::string& name : names) {
    const strategy::Precision precision = parse_word<strategy::Precision>("--precision", name);
    if (!strategy::runs(precision))
      throw InvalidInput(
          fmt::format("--precision is '{}', which Piper prices and does not execute; allowed: {}",
                      name, fmt::join(names_where<strategy::Precision>(kRuns), ", ")));
    if (std::ranges::find(precisions, precision) != precisions.end())
      throw InvalidInput(fmt::format("--precision names {} twice", name));
    precisions.push_back(precision);
  }
  return precisions;
}

profile::ProfileOptions options_of(const ProfileFlags& flags) {
  profile::ProfileOptions options;
  const std::vector<at::Device> devices = profile::parse_devices(flags.device);
  options.device = {devices.front()};
  if (!options.device.is_cpu()) options.devices = devices;
  options.num_ranks = flags.ranks.value_or(options.device.is_cpu() ? 4 : std::ssize(devices));
  options.num_cores = flags.cores;
  options.full = flags.full;
  options.choose_products = true;
  options.budget_seconds =
      flags.budget_seconds.value_or(flags.full ? kFullBudgetSeconds : kBudgetSeconds);
  options.tight = flags.tight;
  options.precisions = precisions_of(flags.precisions);
  options.sequence = flags.sequence;
  if (!flags.full && !flags.model.empty())
    throw InvalidInput("--model is given without --full, which alone measures a model's shapes");
  if (flags.full)
    options.model = read_model(flags.model.empty() ? "piper-10m" : flags.model, flags.ignore);
  options.partial = partial_of(flags);
  if (flags.resume.empty() && !options.partial.empty())
    files::claim_output(options.partial, "the partial file");
  options.fresh = flags.fresh;
  return options;
}

// The links between the ranks of the processes that a launcher started; false in all but the first
// of them, which have then done their part.
bool measure_links_of_processes(const comm::Launch& launch, profile::ProfileOptions& options) {
  if (options.full || !options.device.is_cpu())
    throw InvalidInput(
        "--full and --device are for one process; allowed under a launcher: neither");
  const auto world =
      comm::make_process_world(launch, options.num_ranks, {comm::control_options_from()});
  report::Progress bar({.label = "links", .total = 100, .unit = "%"});
  const profile::LinkOptions links{.num_ranks = options.num_ranks, .tight = options.tight};
  int64_t done = 0;
  const int64_t all = profile::num_link_points(links);
  options.links = profile::measure_links_of(
      *world, links, options.budget_seconds * kForLinksOfProcesses, [&](const std::string& what) {
        if (world->process() == 0) bar.set(100 * ++done / all, what);
      });
  bar.finish();
  return world->process() == 0;
}

Json link_json(const cluster::Cluster& machine, const char* name) {
  const cluster::Curve* curve = cluster::find_curve(machine.curves, name);
  if (curve == nullptr || !curve->fit) return Json();
  Json samples = Json::array();
  for (const cluster::CurvePoint& point : curve->points)
    samples.push_back({{"bytes", point.amount}, {"seconds", point.timing.seconds}});
  return {{"latency_seconds", curve->fit->line.latency_seconds},
          {"bandwidth_bytes_per_second", curve->fit->line.bytes_per_second},
          {"r_squared", curve->fit->r_squared},
          {"median_residual", curve->fit->median_residual},
          {"samples", samples}};
}

Json findings_json(const profile::ProfileOptions& options, const profile::Profile& profile) {
  Json head_sizes = Json::array();
  for (const cluster::HeadSize& h : cluster::head_sizes_of(profile.cluster.curves))
    head_sizes.push_back({{"head_dim", h.head_dim},
                          {"relative_rate", h.relative_rate},
                          {"num_shapes", h.num_shapes}});
  Json json{{"head_sizes", head_sizes}};
  const auto join = cluster::join_of(profile.cluster.curves);
  if (!join || !options.model) return json;
  Json points = Json::array();
  for (const cluster::JoinedPoint& p : join->points)
    points.push_back({{"sequences", p.sequences},
                      {"attention_flops_per_second", p.attention_rate},
                      {"experts_flops_per_second", p.experts_rate},
                      {"both_well", p.both_well}});
  json["micro_batch"] = {{"model", options.model->name},
                         {"sequence", options.sequence},
                         {"ep", profile.ep},
                         {"points", points}};
  if (join->smallest) json["micro_batch"]["smallest"] = *join->smallest;
  return json;
}

// Tells profiles of one machine from each other: whoever begins first has a socket under a name
// without a file, which ends with its process, and whoever comes meanwhile leaves a word there.
class OtherProfiles {
 public:
  OtherProfiles() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
    constexpr std::string_view kName = "piper profile";
    kName.copy(name.sun_path + 1, kName.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + kName.size());
    const auto* address = reinterpret_cast<const sockaddr*>(&name);
    if (socket_ < 0 || ::bind(socket_, address, size) == 0 || errno != EADDRINUSE) return;
    met_ = true;
    [[maybe_unused]] const auto told = ::sendto(socket_, "p", 1, 0, address, size);
  }
  ~OtherProfiles() {
    if (socket_ >= 0) ::close(socket_);
  }
  OtherProfiles(const OtherProfiles&) = delete;
  OtherProfiles& operator=(const OtherProfiles&) = delete;

  // Whether one was there at the start, or has come since.
  bool met() const {
    char word = 0;
    return met_ || (socket_ >= 0 && ::recv(socket_, &word, 1, 0) == 1);
  }

 private:
  const int socket_;
  bool met_ = false;
};

void warn_of(const OtherProfiles& others, const char* when) {
  if (others.met())
    say_error(
        fmt::format("warning: another `piper profile` {} on this machine: what is measured "
                    "are rates of a machine that is shared; profile again, alone",
                    when));
}

int run_profile(const ProfileFlags& flags) {
  profile::ProfileOptions options = options_of(flags);
  if (const auto launch = comm::launch_from();
      launch && !measure_links_of_processes(*launch, options))
    return 0;
  const OtherProfiles others;
  warn_of(others, "is measuring");
  report::Progress bar({.label = "profile", .total = 100, .unit = "%"});
  options.progress = [&](const std::string& what, double part) {
    bar.set(static_cast<int64_t>(part * 100), what);
  };
  const profile::Profile profile = profile::profile_host(options);
  bar.set(100, "");
  bar.finish();
  warn_of(others, "was measuring");
  if (!flags.out.empty()) files::write_json_file(flags.out, cluster::to_json(profile.cluster));
  if (!options.partial.empty()) files::remove_output(options.partial);
  if (flags.json) {
    const Json json{{"cluster", cluster::to_json(profile.cluster)},
                    {"point_to_point", link_json(profile.cluster, "point-to-point")},
                    {"all_to_all", link_json(profile.cluster, "all-to-all")},
                    {"all_reduce", link_json(profile.cluster, "all-reduce")},
                    {"findings", findings_json(options, profile)},
                    {"num_points", profile.num_points},
                    {"num_restored", profile.num_restored},
                    {"profile_seconds", profile.seconds}};
    say_json(json);
    return 0;
  }
  say("{}\n{}, {} a rank, {} points profiled in {}{}\n\n", profile.cluster.description,
      profile.cluster.device, format_bytes(static_cast<double>(profile.cluster.memory_bytes)),
      profile.num_points, format_seconds(profile.seconds),
      profile.num_restored > 0
          ? fmt::format(" ({} of them taken over from the partial file)", profile.num_restored)
          : "");
  print_rates(profile.cluster);
  print_products(profile.cluster);
  if (flags.full) print_curves(profile.cluster, flags.tight);
  print_links(profile.cluster);
  print_head_sizes(profile.cluster);
  if (options.model) print_join(profile.cluster, options.model->name, options.sequence, profile.ep);
  if (flags.points) print_points(profile.cluster);
  print_noise(profile.cluster, flags.tight, profile.num_points);
  if (!flags.out.empty()) say("\nwritten: {}\n", flags.out);
  return 0;
}

}  // namespace

Run add_profile(Subcommand command) {
  auto flags = std::make_shared<ProfileFlags>();
  command.add_output("--out", flags->out, "cluster file to write");
  command
      .add_option("--ranks", flags->ranks,
                  "ranks (threads) that share this machine [4; on GPUs as many as --device names]")
      .check(integer_in(1, 256));
  command
      .add_option("--cores", flags->cores,
                  "cores that they share (default: all that this process may use)")
      .check(integer_in(1, 4096));
  command
      .add_option(
          "--budget-seconds", flags->budget_seconds,
          "time to spend on curves [15; 120 with --full], whose points end earlier where their "
          "median is sure; whole passes of a small model follow, at most three times as "
          "long")
      .check(number_in(1.0, 36000.0));
  command
      .add_option("--tight", flags->tight,
                  "a point ends when the 95 % interval of its median is within this part of it")
      .check(number_in(0.0, 1.0))
      .show_default();
  command.add_flag(
      "--full", flags->full,
      "besides what prices need: dense and expert products, head sizes, norms, routing, "
      "permutation, links among fewer ranks and up to 64 MB, and the micro-batches at "
      "which attention and experts both run well");
  command.add_option("--model", flags->model,
                     "with --full: the model whose shapes are measured [piper-10m]");
  add_ignore_flag(command, flags->ignore);
  command
      .add_option("--sequence", flags->sequence,
                  "with --full: tokens of its sequences; 128K is 131072")
      .takes_suffixes()
      .check(integer_in(1, int64_t{1} << 20))
      .show_default();
  command
      .add_option(
          "--precision", flags->precisions,
          fmt::format("what is measured: {}, or several of them (fp32,bf16), which share the time",
                      one_of_names<strategy::Precision>(kRuns)))
      .delimiter(',')
      .show_default();
  command
      .add_option("--device", flags->device,
                  "what computes: cpu, cuda, cuda:N, or cuda:N,M, between which links are measured")
      .show_default();
  command.add_output("--resume", flags->resume,
                     "partial file to go on from, and to keep while measuring [OUT.partial]");
  command.add_flag("--fresh", flags->fresh,
                   "measure everything anew: delete the partial file first");
  command.add_flag("--points", flags->points, "print every point with its interval and outliers");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_profile(*flags); };
}

}  // namespace piper::cli
