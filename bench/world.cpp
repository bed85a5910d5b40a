#include <bench/moe_layer.h>
#include <bench/step_bench.h>
#include <bench/world.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/median.h>
#include <piper/checkpoint/safetensors.h>
#include <piper/cluster/cluster.h>
#include <piper/comm/launch.h>
#include <piper/comm/local.h>
#include <piper/comm/process_world.h>
#include <piper/nn/counting_allocator.h>
#include <piper/nn/product.h>
#include <piper/profile/measure_products.h>
#include <piper/train/process_agreement.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <sstream>

namespace piper::cli {
namespace {

// How long a partner of a script may wait for the next line.
constexpr double kIdleSeconds = 24 * 3600;

}  // namespace

void add_world_bench_flags(Subcommand command, WorldBenchFlags& flags) {
  command.add_option("--steps", flags.steps, "steps of a round, of several ranks").show_default();
  command
      .add_option("--save", flags.save,
                  "of several ranks: writes what a step started from and led to into this folder")
      .type_name("FOLDER");
  command
      .add_option("--cluster", flags.cluster,
                  "what `piper profile --out` wrote here: matrix products by the libraries that it "
                  "found the faster ones")
      .type_name("FILE");
}

void take_product_choice(const WorldBenchFlags& flags) {
  if (flags.cluster.empty()) return;
  const auto choice = profile::product_choice_of(cluster::load_cluster(flags.cluster).curves);
  if (!choice)
    throw InvalidInput(fmt::format(
        "--cluster {}: holds no measured libraries of products; allowed: what `piper profile "
        "--out` writes with --precision fp32, on a CPU and with libdnnl-dev",
        flags.cluster));
  nn::choose_products(choice);
}

void check_count(const char* flag, int64_t value, int64_t max, std::vector<std::string>& problems) {
  if (value < 1 || value > max)
    problems.push_back(fmt::format("{} is {}; allowed: an integer from 1 to {}", flag, value, max));
}

int64_t num_launched() {
  const auto launch = comm::launch_from();
  return launch ? launch->num_processes : 1;
}

std::unique_ptr<comm::World> bench_world(int64_t num_ranks) {
  nn::install_counting_allocator();  // as in training
  const auto launch = comm::launch_from();
  if (!launch) return std::make_unique<comm::LocalWorld>(num_ranks);
  comm::ProcessOptions options{comm::control_options_from()};
  options.control.share_timeout_seconds = kIdleSeconds;
  return comm::make_process_world(*launch, num_ranks, options);
}

WorldBench::WorldBench(std::unique_ptr<comm::World> world, Make make)
    : world_(std::move(world)), make_(std::move(make)) {}
WorldBench::~WorldBench() = default;

WorldBench::Case& WorldBench::at(int64_t rows) {
  const auto found = cases_.find(rows);
  if (found != cases_.end()) return found->second;
  Case& made = cases_.emplace(rows, make_(*world_, rows)).first->second;
  made.bench->step_seconds(2);  // warm
  return made;
}

double WorldBench::step_seconds(int64_t rows, int64_t steps) {
  return std::ranges::max(at(rows).bench->step_seconds(steps));
}

double WorldBench::limit_seconds(int64_t rows, int64_t steps) {
  Case& of_rows = at(rows);
  return of_rows.limit(of_rows.bench->product_seconds(steps * of_rows.num_micro_batches));
}

WorldBench::Times WorldBench::measure(int64_t rows, int64_t rounds, int64_t steps) {
  std::vector<double> step, limit, ratio;
  for (int64_t round = 0; round < rounds; ++round) {
    step.push_back(step_seconds(rows, steps));
    limit.push_back(limit_seconds(rows, steps));
    ratio.push_back(step.back() / limit.back());
  }
  return {.step_seconds = median(step),
          .limit_seconds = median(limit),
          .ratio = median(ratio),
          .lowest_ratio = std::ranges::min(ratio),
          .highest_ratio = std::ranges::max(ratio)};
}

void WorldBench::save(int64_t rows, const std::string& folder) {
  const auto records = at(rows).bench->record();
  train::on_all_processes(*world_, "save", [&] {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw IoError(folder + ": cannot be made: " + error.message());
    for (const auto& [rank, record] : records)
      checkpoint::write_safetensors(
          std::filesystem::path(folder) / fmt::format("rank{}.safetensors", rank.value),
          record.tensors, {{"loss", fmt::format("{:.17g}", record.loss)}});
    return std::string();
  });
}

std::string WorldBench::answer(const std::string& line) {
  std::istringstream in(line);
  std::string what, argument;
  int64_t rows = 0;
  in >> what >> rows >> argument;
  constexpr int64_t kMaxRows = 1 << 20, kMaxRepeats = 100'000;
  if (rows >= 1 && rows <= kMaxRows && !argument.empty()) {
    if (what == "save") {
      save(rows, argument);
      return "saved";
    }
    const int64_t repeats = std::atoll(argument.c_str());
    if (repeats >= 1 && repeats <= kMaxRepeats) {
      if (what == "steps") return fmt::format("{:.9f}", step_seconds(rows, repeats));
      if (what == "limit") return fmt::format("{:.9f}", limit_seconds(rows, repeats));
    }
  }
  throw InvalidInput(fmt::format(
      "standard input: '{}'; allowed: steps ROWS N, limit ROWS N, save ROWS FOLDER", line));
}

void WorldBench::serve() {
  constexpr char kLine = '+';
  for (;;) {
    const std::string line = train::on_first_process(*world_, "line of standard input", [] {
      std::string read;
      return std::getline(std::cin, read) ? kLine + read : std::string();
    });
    if (line.empty()) return;
    const std::string answered = answer(line.substr(1));
    if (!prints()) continue;
    std::puts(answered.c_str());
    std::fflush(stdout);
  }
}

std::string WorldBench::describe() const {
  const auto launch = comm::launch_from();
  const std::string ranks = fmt::format("{} ranks, ", world_->size());
  if (!launch) return ranks + "threads of one process";
  const bool over_mpi =
      launch->launcher == comm::Launcher::kOpenMpi || launch->launcher == comm::Launcher::kMpich;
  return fmt::format("{}{} processes over {}", ranks, launch->num_processes,
                     over_mpi ? comm::to_string(launch->launcher) : "TCP");
}

Json to_json(const WorldBench::Times& times) {
  return {{"step_seconds", times.step_seconds},
          {"limit_seconds", times.limit_seconds},
          {"step_over_limit", times.ratio},
          {"lowest_step_over_limit", times.lowest_ratio},
          {"highest_step_over_limit", times.highest_ratio}};
}

std::string to_text(const WorldBench::Times& times, int64_t rounds) {
  return fmt::format(
      "  step                 {:9.2f} ms\n"
      "  its products alone   {:9.2f} ms\n"
      "  step / products      {:9.3f}     (median of {} rounds, {:.3f} to {:.3f})\n",
      times.step_seconds * 1e3, times.limit_seconds * 1e3, times.ratio, rounds, times.lowest_ratio,
      times.highest_ratio);
}

}  // namespace piper::cli
