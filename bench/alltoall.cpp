#include <bench/alltoall.h>
#include <bench/alltoall_algorithms.h>
#include <bench/alltoall_load.h>
#include <bench/alltoall_prediction.h>
#include <bench/benches.h>
#include <bench/nccl.h>
#include <bench/ranks.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cli/byte_count.h>
#include <piper/cli/console.h>
#include <piper/comm/control.h>
#include <piper/comm/exchange_limit.h>
#include <piper/comm/place.h>
#include <piper/comm/process_world.h>
#include <piper/files/output.h>
#include <piper/report/progress.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <ranges>
#include <sstream>

namespace piper::cli {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 30;

struct AllToAllFlags {
  BenchRanksFlags ranks;
  std::string min_bytes = "1K", max_bytes = "16M", factor = "4", load = "uniform";
  std::string transport = "plain", cluster, plot;
  std::vector<std::string> pair_bytes, algorithms;
  bool json = false;
};

struct AllToAllQuestion {
  BenchRanks ranks;
  AllToAllOptions options;
  bool over_nccl = false;
  std::string transport() const { return over_nccl ? "nccl" : ranks.transport(); }
};

std::vector<int64_t> read_sizes(const AllToAllFlags& flags, int64_t num_ranks,
                                std::vector<std::string>* problems) {
  std::vector<int64_t> sizes;
  for (const std::string& text : flags.pair_bytes)
    sizes.push_back(read_bytes("--pair-bytes", text, 0, kMaxBytes, problems));
  const int64_t low = read_bytes("--min-bytes", flags.min_bytes, 1, kMaxBytes, problems);
  const int64_t high = read_bytes("--max-bytes", flags.max_bytes, 1, kMaxBytes, problems);
  const int64_t factor = read_bytes("--factor", flags.factor, 2, kMaxBytes, problems);
  if (problems->empty() && low > high)
    problems->push_back(
        fmt::format("--min-bytes is {}; allowed: at most --max-bytes, which is {}", low, high));
  if (sizes.empty() && problems->empty())
    for (int64_t bytes = low; bytes <= high; bytes *= factor)
      sizes.push_back(std::max<int64_t>(bytes / num_ranks, 1));
  std::ranges::sort(sizes);
  const auto [end, last] = std::ranges::unique(sizes);
  sizes.erase(end, last);
  return sizes;
}

AllToAllQuestion read_flags(const AllToAllFlags& flags) {
  std::vector<std::string> problems;
  AllToAllQuestion q;
  q.ranks = read_bench_ranks(flags.ranks, &problems);
  q.over_nccl = flags.transport == "nccl";
  if (!q.over_nccl && flags.transport != "plain")
    problems.push_back(fmt::format("--transport is '{}'; allowed: plain, nccl", flags.transport));
  q.options.bytes_per_pair = read_sizes(flags, q.ranks.num_ranks, &problems);
  q.options.min_rounds = q.ranks.min_rounds;
  q.options.max_rounds = q.ranks.max_rounds;
  q.options.min_repeats = q.ranks.min_repeats;
  q.options.budget_seconds = q.ranks.budget_seconds;
  if (!problems.empty()) throw InvalidInput(problems);
  q.options.algorithms = flags.algorithms;
  q.options.load = cost::parse_load(flags.load);
  // What each of them refuses it refuses before anything starts.
  const collective::Topology one_node = collective::even_nodes(1, q.ranks.num_ranks, 1);
  for (const std::string& name : flags.algorithms)
    all_to_all(name, one_node, collective::CountOf());
  receiver_shares(q.options.load, one_node, q.ranks.num_ranks);
  if (!flags.cluster.empty()) q.options.cluster = cluster::load_cluster(flags.cluster);
  return q;
}

// All processes of a launcher must have been asked the same, or they would wait for each other.
void require_alike(comm::World& world, const AllToAllFlags& f) {
  if (world.num_processes() == 1) return;
  const std::vector<std::string> mine{
      "--ranks",      f.ranks.ranks,
      "--min-bytes",  f.min_bytes,
      "--max-bytes",  f.max_bytes,
      "--factor",     f.factor,
      "--pair-bytes", fmt::format("{}", fmt::join(f.pair_bytes, ",")),
      "--algorithms", fmt::format("{}", fmt::join(f.algorithms, ",")),
      "--load",       f.load,
      "--transport",  f.transport,
      "--seconds",    f.ranks.seconds,
      "--rounds",     f.ranks.rounds,
      "--repeats",    f.ranks.repeats};
  const std::vector<std::string> all =
      world.share("options", fmt::format("{}", fmt::join(mine, "\n")));
  for (size_t p = 0; p < all.size(); ++p) {
    if (all[p] == all[0]) continue;
    std::istringstream first(all[0]), other(all[p]);
    std::string flag, expected, found;
    while (std::getline(first, flag) && std::getline(other, flag) &&
           std::getline(first, expected) && std::getline(other, found))
      if (expected != found)
        throw InvalidInput(
            fmt::format("{} is '{}' on rank {}; allowed: the same on all, '{}' on rank 0", flag,
                        found, p, expected));
  }
}

int run_alltoall(const AllToAllFlags& flags) {
  AllToAllQuestion q = read_flags(flags);
  const std::unique_ptr<comm::World> world = q.ranks.world();
  require_alike(*world, flags);
  if (q.over_nccl) q.options.device = open_nccl(*world, q.options.bytes_per_pair.size());
  std::unique_ptr<report::Progress> progress;
  if (world->process() == 0)
    progress.reset(new report::Progress({.label = "alltoall", .total = 100, .unit = "%"}));
  const AllToAllRun run = bench_alltoall(*world, q.transport(), q.options, [&](double part) {
    if (progress) progress->set(static_cast<int64_t>(100 * part));
  });
  if (world->process() == 0) {
    progress->finish();
    flags.json ? say_json(to_json(run)) : say("{}", Lines{to_text(run)});
    if (!flags.json && flags.cluster.empty())
      say("# no --cluster: {}, no prediction; `piper profile --out here.json` makes one\n",
          world->num_processes() > 1 ? "no limit" : "the limit is a plain copy");
    if (!flags.plot.empty())
      files::write_text_file(flags.plot, "<!-- written by piper -->\n" + to_svg(run));
  }
  return run.num_wrong() == 0 ? 0 : 1;
}

// Measures the exchanges of one size after another, each with its limit and its prediction.
class Bench {
 public:
  Bench(comm::World& world, const AllToAllOptions& options)
      : world_(world),
        options_(options),
        topology_(comm::gather_topology(world, comm::place_from())),
        shares_(receiver_shares(options.load, topology_, world.size())),
        names_(options.algorithms.empty() ? all_to_all_names() : options.algorithms) {
    one_clock_ = share_a_clock(world);
  }

  int64_t num_nodes() const {
    const std::vector<int32_t>& nodes = topology_.unit.front();
    return *std::ranges::max_element(nodes) + 1;
  }

  std::vector<AllToAllPoint> points(int64_t bytes_per_pair, double budget_seconds,
                                    const std::function<void(double)>& progress) {
    const collective::CountOf count = counts_of(shares_, bytes_per_pair);
    const int64_t n = world_.size();
    std::vector<comm::Exchange> exchanges;
    for (const std::string& name : names_) exchanges.push_back(all_to_all(name, topology_, count));
    if (const auto native = comm::native_all_to_all(world_); native && !options_.device)
      exchanges.push_back({.name = "MPI_Alltoallv", .steps = {}, .native = native});
    const size_t num_exchanges = exchanges.size();
    const bool copies = !options_.cluster && world_.num_processes() == 1 && !options_.device;
    if (copies) exchanges.push_back({.name = "copy", .steps = {}, .native = copy});
    const std::vector<comm::ExchangeResult> results =
        comm::measure_exchanges(world_, exchanges, count,
                                {.budget_seconds = budget_seconds,
                                 .min_rounds = options_.min_rounds,
                                 .max_rounds = options_.max_rounds,
                                 .min_repeats = options_.min_repeats,
                                 .one_clock = one_clock_,
                                 .device = options_.device,
                                 .progress = progress});
    int64_t bytes = 0;
    for (int64_t to = 0; to < n; ++to) bytes += count(0, to);
    const std::optional<double> limit =
        copies ? std::optional(results.back().seconds) : limit_seconds(count);
    std::vector<AllToAllPoint> points;
    for (size_t e = 0; e < num_exchanges; ++e)
      points.push_back(
          {exchanges[e].name, bytes_per_pair, bytes, results[e], limit, prediction(exchanges[e])});
    return points;
  }

 private:
  // The limit among threads, timed in turn with the exchanges: whatever the transport does, it
  // copies once. What arrives is not checked: it is not an exchange.
  static void copy(std::span<const std::byte> sent, std::span<const int>,
                   std::span<std::byte> received, std::span<const int>) {
    const size_t bytes = std::min(sent.size(), received.size());
    if (bytes > 0) std::memcpy(received.data(), sent.data(), bytes);
  }

  std::optional<double> limit_seconds(const collective::CountOf& count) const {
    if (!options_.cluster) return std::nullopt;
    return comm::exchange_limit(topology_, count, world_.size(),
                                comm::link_rates(*options_.cluster, topology_));
  }

  std::optional<double> prediction(const comm::Exchange& exchange) const {
    if (!options_.cluster || exchange.native || world_.process() != 0) return std::nullopt;
    return predicted_seconds(exchange, topology_, world_.size(), *options_.cluster);
  }

  comm::World& world_;
  const AllToAllOptions& options_;
  collective::Topology topology_;
  std::vector<double> shares_;
  std::vector<std::string> names_;
  bool one_clock_ = true;
};

// More bytes hold fewer: what a larger exchange takes at least bounds the smaller one, whose copy
// may have been timed while other work had the cores.
void bound_by_larger(std::vector<AllToAllPoint>& points) {
  std::optional<double> larger;
  for (AllToAllPoint& point : points | std::views::reverse) {
    if (!point.limit_seconds) continue;
    if (larger) point.limit_seconds = std::min(*point.limit_seconds, *larger);
    larger = point.limit_seconds;
  }
}

}  // namespace

AllToAllRun bench_alltoall(comm::World& world, const std::string& transport,
                           const AllToAllOptions& options,
                           const std::function<void(double)>& progress) {
  Bench bench(world, options);
  AllToAllRun run{.transport = transport,
                  .num_ranks = world.size(),
                  .num_nodes = bench.num_nodes(),
                  .load = options.load.text};
  const auto num_sizes = static_cast<double>(options.bytes_per_pair.size());
  for (size_t i = 0; i < options.bytes_per_pair.size(); ++i) {
    const std::vector<AllToAllPoint> points =
        bench.points(options.bytes_per_pair[i], options.budget_seconds / num_sizes,
                     [&](double part) { progress((static_cast<double>(i) + part) / num_sizes); });
    run.points.insert(run.points.end(), points.begin(), points.end());
  }
  bound_by_larger(run.points);
  return run;
}

Run add_bench_alltoall(Subcommand command) {
  const auto flags = std::make_shared<AllToAllFlags>();
  const auto option = [&](const char* name, auto& value, const char* what) {
    return command.add_option(name, value, what);
  };
  option("--ranks", flags->ranks.ranks,
         "ranks as threads; under a launcher its processes are the ranks")
      .show_default();
  option("--min-bytes", flags->min_bytes, "smallest buffer of a rank").show_default();
  option("--max-bytes", flags->max_bytes, "largest buffer of a rank").show_default();
  option("--factor", flags->factor, "between one size and the next").show_default();
  option("--pair-bytes", flags->pair_bytes, "instead: bytes of a pair of ranks, for example 64,4K")
      .delimiter(',');
  option("--algorithms", flags->algorithms, "for example node-aware,halo,halo:64K (all)")
      .delimiter(',');
  option("--load", flags->load, "uniform, hot-rank:F (of every node), zipf:S or trace:FILE")
      .show_default();
  option("--transport", flags->transport,
         "plain (memory, TCP or MPI), or nccl: GPU memory, a GPU for each rank")
      .show_default();
  option("--cluster", flags->cluster, "the machine whose rates limit and prediction take");
  option("--seconds", flags->ranks.seconds, "time budget of the whole run").show_default();
  option("--rounds", flags->ranks.rounds, "batches of every point at least, late or not")
      .show_default();
  option("--repeats", flags->ranks.repeats, "exchanges of a batch at least, back to back")
      .show_default();
  command.add_output("--plot", flags->plot, "writes a picture of the seconds into this file");
  command.add_flag("--json", flags->json, "print JSON");
  return [flags] { return run_alltoall(*flags); };
}

}  // namespace piper::cli
