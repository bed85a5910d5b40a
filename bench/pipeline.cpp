// piper bench pipeline: steps of a pipeline of linear layers, run by the executor that trains;
// with --serve, a partner for scripts/bench_pipeline, which runs others' pipelines and this one in
// turn.
#include <bench/benches.h>
#include <bench/stage.h>
#include <bench/step_bench.h>
#include <bench/world.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cli/console.h>
#include <piper/cli/strategy_flags.h>
#include <piper/nn/init.h>
#include <piper/schedule/rank_chunks.h>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace piper::cli {
namespace {

constexpr uint64_t kPipelineSeed = 1;
constexpr double kLearningRate = 0.1;

struct PipelineFlags {
  WorldBenchFlags world;
  int64_t ranks = 0, hidden = 512, linear_layers = 8, micro_batches = 8;
  std::vector<int64_t> rows{64, 512};
  std::string schedule = "1f1b";
};

strategy::PipelineSchedule schedule_of(const PipelineFlags& flags) {
  return parse_word<strategy::PipelineSchedule>("--schedule", flags.schedule);
}

int64_t chunks_of_rank(strategy::PipelineSchedule schedule) {
  return strategy::is_v(schedule) || strategy::interleaves(schedule) ? 2 : 1;
}

void check(const PipelineFlags& flags) {
  std::vector<std::string> problems;
  check_count("--ranks", flags.ranks, 64, problems);
  check_count("--hidden", flags.hidden, 1 << 16, problems);
  check_count("--micro-batches", flags.micro_batches, 4096, problems);
  check_count("--rounds", flags.world.rounds, 10000, problems);
  check_count("--steps", flags.world.steps, 100'000, problems);
  for (const int64_t rows : flags.rows) check_count("--rows", rows, 1 << 20, problems);
  const int64_t stages = flags.ranks * chunks_of_rank(schedule_of(flags));
  if (problems.empty() && (flags.linear_layers < 1 || flags.linear_layers > 4096 ||
                           flags.linear_layers % (2 * stages) != 0))
    problems.push_back(fmt::format(
        "--linear-layers is {}; allowed: a multiple of {} up to 4096 (two for each of {} stages)",
        flags.linear_layers, 2 * stages, stages));
  if (!problems.empty()) throw InvalidInput(problems);
}

// Only its shape counts: what the segments compute is the stage's.
model::Model model_of(const PipelineFlags& flags) {
  model::Model m;
  m.name = "bench";
  m.hidden = flags.hidden;
  m.vocabulary = 8;
  model::Layer layer;
  layer.attention = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 8};
  layer.feed_forward = {.ffn = flags.hidden};
  m.layers.assign(static_cast<size_t>(flags.linear_layers / 2), layer);
  return m;
}

strategy::Strategy strategy_of(const PipelineFlags& flags, int64_t rows) {
  strategy::Strategy s;
  s.mesh.pp = flags.ranks;
  s.schedule = schedule_of(flags);
  s.mesh.vpp = chunks_of_rank(s.schedule);
  s.layers_per_stage = strategy::even_split(flags.linear_layers / 2, s.mesh.num_virtual_stages());
  s.sequence = rows;
  s.micro_batch_sequences = 1;
  s.num_micro_batches = s.global_batch_sequences = flags.micro_batches;
  return s;
}

at::Tensor values(const PipelineFlags& flags, int64_t rows, const char* name, int64_t micro_batch) {
  at::Tensor made = at::empty({rows, flags.hidden});
  nn::fill_normal(made, kPipelineSeed, fmt::format("{}.{}", name, micro_batch), 1);
  return made;
}

train::BenchPart part_of(const PipelineFlags& flags, const strategy::Strategy& strategy,
                         Rank rank) {
  const int64_t rows = strategy.sequence;
  nn::LinearStageShape shape{.rows = rows,
                             .hidden = flags.hidden,
                             .num_micro_batches = flags.micro_batches,
                             .layers = {},
                             .seed = kPipelineSeed};
  bool is_first = false, is_last = false;
  for (const schedule::RankChunk& chunk : schedule::chunks_of(strategy, rank.value)) {
    for (int32_t i = 0; i < chunk.num_layers; ++i) shape.layers.push_back(chunk.first_layer + i);
    is_first |= chunk.is_first;
    is_last |= chunk.is_last;
  }
  train::BenchPart part;
  part.stage = nn::make_linear_stage(shape);
  part.micro_batches.resize(static_cast<size_t>(flags.micro_batches));
  for (int64_t i = 0; i < flags.micro_batches; ++i) {
    executor::MicroBatch& batch = part.micro_batches[static_cast<size_t>(i)];
    if (is_first) batch.tokens_BS = values(flags, rows, "x", i);
    if (is_last) batch.targets_T = values(flags, rows, "target", i);
  }
  return part;
}

// No schedule is faster than its slowest stage's products, and one micro-batch's on the way there
// and back.
double pipeline_limit(const std::vector<double>& products, int64_t num_micro_batches) {
  double before = 0, limit = 0;
  for (const double seconds : products) {
    limit = std::max(limit, before + static_cast<double>(num_micro_batches) * seconds);
    before += seconds;
  }
  return limit;
}

WorldBench bench_of(const PipelineFlags& flags) {
  return {bench_world(flags.ranks), [flags](comm::World& world, int64_t rows) {
            const strategy::Strategy strategy = strategy_of(flags, rows);
            return WorldBench::Case{std::make_unique<train::StepBench>(
                                        world, model_of(flags), strategy, kLearningRate,
                                        [&](Rank rank) { return part_of(flags, strategy, rank); }),
                                    [n = flags.micro_batches](const std::vector<double>& products) {
                                      return pipeline_limit(products, n);
                                    }};
          }};
}

int run_pipeline(PipelineFlags flags) {
  if (flags.ranks == 0) flags.ranks = std::max<int64_t>(2, num_launched());
  check(flags);
  take_product_choice(flags.world);
  WorldBench bench = bench_of(flags);
  if (flags.world.serve) {
    bench.serve();
    return 0;
  }
  Json json = Json::array();
  for (const int64_t rows : flags.rows) {
    const WorldBench::Times times = bench.measure(rows, flags.world.rounds, flags.world.steps);
    if (!flags.world.save.empty()) bench.save(rows, flags.world.save);
    json.push_back(to_json(times));
    json.back().update({{"rows", rows},
                        {"hidden", flags.hidden},
                        {"linear_layers", flags.linear_layers},
                        {"micro_batches", flags.micro_batches},
                        {"schedule", flags.schedule},
                        {"world", bench.describe()}});
    if (bench.prints() && !flags.world.json)
      say("{}: {} linear layers of {}, {} micro-batches of {} rows, {}, fp32\n{}", bench.describe(),
          flags.linear_layers, flags.hidden, flags.micro_batches, rows, flags.schedule,
          Lines{to_text(times, flags.world.rounds)});
  }
  if (bench.prints() && flags.world.json) say_json(json);
  return 0;
}

}  // namespace

Run add_bench_pipeline(Subcommand command) {
  const auto flags = std::make_shared<PipelineFlags>();
  command.add_option("--ranks", flags->ranks,
                     "stages (default: as many as processes were launched, 2 without a launcher)");
  command
      .add_option("--rows", flags->rows,
                  "rows of a micro-batch; several: one bench after the other")
      .delimiter(',')
      .show_default();
  command.add_option("--hidden", flags->hidden, "width of a linear layer").show_default();
  command.add_option("--linear-layers", flags->linear_layers, "of all stages").show_default();
  command.add_option("--micro-batches", flags->micro_batches, "of a step").show_default();
  command
      .add_option("--schedule", flags->schedule,
                  fmt::format("{}; two chunks a rank where it has several",
                              fmt::join(names_of<strategy::PipelineSchedule>(), ", ")))
      .show_default();
  command.add_option("--rounds", flags->world.rounds, "rounds; medians are reported")
      .show_default();
  add_world_bench_flags(command, flags->world);
  command.add_flag("--serve", flags->world.serve,
                   "answer lines 'steps ROWS N', 'limit ROWS N' by seconds (for scripts)");
  command.add_flag("--json", flags->world.json, "print JSON");
  command.footer("Alone: every rank is a thread. Under `piper launch -n 2` or mpirun: processes.");
  return [flags] { return run_pipeline(*flags); };
}

}  // namespace piper::cli
