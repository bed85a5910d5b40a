// piper bench moe: one mixture layer against the products that it is made of, on one rank or on
// several; with --serve, a partner for scripts/bench_moe or scripts/bench_expert_parallel, which
// run others' layers and this one in turn.
#include <ATen/Parallel.h>
#include <bench/benches.h>
#include <bench/moe_layer.h>
#include <bench/stage.h>
#include <bench/step_bench.h>
#include <bench/world.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cli/console.h>
#include <piper/cli/enum_help.h>
#include <piper/cli/strategy_flags.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/nn/counting_allocator.h>
#include <piper/nn/init.h>
#include <piper/profile/bench_device.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

namespace piper::cli {
namespace {

constexpr uint64_t kLayerSeed = 1;

struct MoeFlags {
  nn::MoeLayerShape shape;
  std::string device = "cpu", precision = "fp32";
  int64_t ranks = 0, tp = 1, moe_chunks = 1;
  std::string moe_schedule = strategy::name(strategy::MoeSchedule::kPlain);
  WorldBenchFlags world;
  int64_t ep() const { return ranks / tp; }
  bool is_plain_rank() const { return ranks == 1 && moe_schedule == "plain" && moe_chunks == 1; }
};

// The layer with its experts divided over the ranks: each expert's width by tp, whole experts by
// what is left. `tokens` are those of a rank, which the ranks of a tp group hold alike.
strategy::Strategy strategy_of(const MoeFlags& flags, int64_t tokens) {
  strategy::Strategy s;
  s.mesh.tp = s.mesh.etp = flags.tp;
  s.mesh.ep = s.mesh.dp = s.global_batch_sequences = flags.ep();
  s.moe_schedule = parse_word<strategy::MoeSchedule>("--moe-schedule", flags.moe_schedule);
  s.moe_chunks = flags.moe_chunks;
  s.layers_per_stage = {1};
  s.sequence = tokens;
  s.micro_batch_sequences = s.num_micro_batches = 1;
  return s;
}

// Orders of the layer: of tokens that ranks hold alike, or of any.
std::string orders(bool needs_replicated_tokens) {
  return one_of_names<strategy::MoeSchedule>([&](const strategy::MoeScheduleTraits& row) {
    return kRuns(row) && row.needs_replicated_tokens == needs_replicated_tokens;
  });
}

// The flag of this command that sets a field of the strategy.
std::string own_flag_of(std::string_view key) {
  if (key == "mesh.etp") return "--tp";
  if (key == "mesh.ep") return "--ranks";
  if (key == "sequence") return "--tokens";
  return flag_of(key);
}

void check(const MoeFlags& flags) {
  std::vector<std::string> problems;
  const auto in_range = [&](const char* flag, int64_t value, int64_t max) {
    check_count(flag, value, max, problems);
  };
  in_range("--tokens", flags.shape.tokens, 1 << 20);
  in_range("--hidden", flags.shape.hidden, 1 << 16);
  in_range("--ffn", flags.shape.ffn, 1 << 17);
  in_range("--experts", flags.shape.num_experts, 4096);
  in_range("--top-k", flags.shape.top_k, std::max<int64_t>(1, flags.shape.num_experts));
  in_range("--rounds", flags.world.rounds, 10000);
  in_range("--steps", flags.world.steps, 100'000);
  in_range("--ranks", flags.ranks, 64);
  in_range("--tp", flags.tp, 64);
  in_range("--moe-chunks", flags.moe_chunks, strategy::kMaxMoeChunks);
  if (problems.empty() && flags.ranks % flags.tp != 0)
    problems.push_back(fmt::format("--tp is {}; allowed: a divisor of --ranks, which is {}",
                                   flags.tp, flags.ranks));
  if (problems.empty() && flags.shape.num_experts % flags.ep() != 0)
    problems.push_back(fmt::format(
        "--ranks is {}; allowed: {}a divisor of --experts, which is {}", flags.ranks,
        flags.tp > 1 ? fmt::format("--tp {} times ", flags.tp) : "", flags.shape.num_experts));
  if (problems.empty() && !flags.is_plain_rank())
    problems = strategy::texts_of(strategy::contradictions(
        strategy_of(flags, flags.shape.tokens), nn::mixture_layer_model(flags.shape), own_flag_of));
  if (!problems.empty()) throw InvalidInput(problems);
}

void print(const MoeFlags& flags, const nn::MoeLayerTimes& times) {
  const nn::MoeLayerShape& s = flags.shape;
  if (flags.world.json) {
    const Json json{{"tokens", s.tokens},
                    {"hidden", s.hidden},
                    {"ffn", s.ffn},
                    {"experts", s.num_experts},
                    {"top_k", s.top_k},
                    {"device", flags.device},
                    {"precision", flags.precision},
                    {"rounds", flags.world.rounds},
                    {"layer_seconds", times.layer_seconds},
                    {"gemm_seconds", times.gemm_seconds},
                    {"layer_over_gemms", times.ratio},
                    {"gemm_flops_per_second", times.flops / times.gemm_seconds}};
    say_json(json);
    return;
  }
  const std::string text = fmt::format(
      "mixture layer, forward and backward, {}, {}: {} tokens, hidden {}, ffn {}, {} "
      "experts, top {}\n"
      "  layer                {:9.2f} ms\n"
      "  its products alone   {:9.2f} ms  ({:.1f} GFLOP/s; the fastest of two weight layouts and "
      "the libraries here)\n"
      "  layer / products     {:9.3f}     (median of {} rounds, both sides in turn)\n",
      flags.precision, s.options.device().is_cpu() ? "one thread" : flags.device, s.tokens,
      s.hidden, s.ffn, s.num_experts, s.top_k, times.layer_seconds * 1e3, times.gemm_seconds * 1e3,
      times.flops / times.gemm_seconds * 1e-9, times.ratio, flags.world.rounds);
  std::fputs(text.c_str(), stdout);
}

// Every line "tokens experts top_k" chooses a layer (the last one is kept while the line is the
// same) and is answered by the seconds of one forward and backward; hidden and ffn are the flags'.
int serve(const MoeFlags& flags) {
  std::string line, last;
  std::unique_ptr<nn::MoeLayerBench> bench;
  while (std::getline(std::cin, line)) {
    if (line != last) {
      MoeFlags asked = flags;
      std::istringstream in(line);
      if (!(in >> asked.shape.tokens >> asked.shape.num_experts >> asked.shape.top_k))
        throw InvalidInput(
            fmt::format("standard input: '{}'; allowed: tokens experts top_k", line));
      check(asked);
      bench.reset();
      bench = std::make_unique<nn::MoeLayerBench>(asked.shape);
      bench->run_layer();
      last = line;
    }
    std::puts(fmt::format("{:.9f}", bench->run_layer()).c_str());
    std::fflush(stdout);
  }
  return 0;
}

train::BenchPart part_of(const nn::MoeLayerShape& shape, const strategy::Strategy& strategy,
                         Rank rank) {
  const int64_t data_rank = strategy::RankLayout(strategy).coordinates(rank).dp;
  train::BenchPart part;
  part.stage = nn::make_mixture_stage(shape, strategy, rank);
  const auto values = [&](const char* name) {
    at::Tensor made = at::empty({shape.tokens, shape.hidden});
    nn::fill_normal(made, kLayerSeed, fmt::format("{}.{}", name, data_rank), 1);
    return made;
  };
  part.micro_batches = {{.tokens_BS = values("x"), .targets_T = values("gradient")}};
  return part;
}

WorldBench world_bench_of(const MoeFlags& flags) {
  return {bench_world(flags.ranks), [flags](comm::World& world, int64_t tokens) {
            nn::MoeLayerShape shape = flags.shape;
            shape.tokens = tokens;
            const strategy::Strategy strategy = strategy_of(flags, tokens);
            return WorldBench::Case{
                std::make_unique<train::StepBench>(
                    world, nn::mixture_layer_model(shape), strategy, 0.0,
                    [&](Rank rank) { return part_of(shape, strategy, rank); }),
                // The ranks wait for each other in every exchange.
                [](const std::vector<double>& products) { return std::ranges::max(products); }};
          }};
}

// ", tp 2, parm-s1": what is not the default.
std::string division(const MoeFlags& flags) {
  std::string text;
  if (flags.tp > 1) text += fmt::format(", tp {}", flags.tp);
  if (flags.moe_schedule != "plain") text += ", " + flags.moe_schedule;
  if (flags.moe_chunks > 1) text += fmt::format(" in {} chunks", flags.moe_chunks);
  return text;
}

int run_on_several(const MoeFlags& flags) {
  WorldBench bench = world_bench_of(flags);
  if (flags.world.serve) {
    bench.serve();
    return 0;
  }
  const nn::MoeLayerShape& s = flags.shape;
  const WorldBench::Times times = bench.measure(s.tokens, flags.world.rounds, flags.world.steps);
  if (!flags.world.save.empty()) bench.save(s.tokens, flags.world.save);
  if (!bench.prints()) return 0;
  if (flags.world.json) {
    Json json = to_json(times);
    json.update({{"tokens", s.tokens},
                 {"hidden", s.hidden},
                 {"ffn", s.ffn},
                 {"experts", s.num_experts},
                 {"top_k", s.top_k},
                 {"tp", flags.tp},
                 {"moe_schedule", flags.moe_schedule},
                 {"moe_chunks", flags.moe_chunks},
                 {"rounds", flags.world.rounds},
                 {"world", bench.describe()}});
    say_json(json);
    return 0;
  }
  say("{}: mixture layer, forward and backward, fp32: {} tokens a rank, hidden {}, ffn {}, {} "
      "experts, top {}{}\n{}",
      bench.describe(), s.tokens, s.hidden, s.ffn, s.num_experts, s.top_k, division(flags),
      Lines{to_text(times, flags.world.rounds)});
  return 0;
}

int run_moe(MoeFlags flags) {
  if (flags.ranks == 0) flags.ranks = num_launched();
  flags.shape.num_heads = flags.tp;
  check(flags);
  take_product_choice(flags.world);
  const strategy::Precision precision =
      parse_word<strategy::Precision>("--precision", flags.precision);
  if (!strategy::runs(precision))
    throw InvalidInput(fmt::format("--precision is '{}'; allowed: {}", flags.precision,
                                   fmt::join(names_where<strategy::Precision>(kRuns), ", ")));
  const at::Device device = profile::parse_bench_device(flags.device).device;
  if (flags.ranks > 1 && (!device.is_cpu() || precision != strategy::Precision::kFp32))
    throw InvalidInput("--device and --precision are for one rank; allowed: --ranks 1");
  flags.shape.options = at::TensorOptions(device).dtype(executor::scalar_type(precision));
  if (flags.ranks > 1) return run_on_several(flags);
  if (!flags.world.save.empty())
    throw InvalidInput("--save is for several ranks; allowed: with --ranks 2 or under a launcher");
  nn::install_counting_allocator();  // as in training
  at::set_num_threads(1);
  if (flags.world.serve) return serve(flags);
  print(flags, nn::bench_moe_layer(flags.shape, flags.world.rounds));
  return 0;
}

}  // namespace

Run add_bench_moe(Subcommand command) {
  const auto flags = std::make_shared<MoeFlags>();
  command.add_option("--tokens", flags->shape.tokens, "tokens of the micro-batch").show_default();
  command.add_option("--hidden", flags->shape.hidden, "hidden size").show_default();
  command.add_option("--ffn", flags->shape.ffn, "intermediate size of an expert").show_default();
  command.add_option("--experts", flags->shape.num_experts, "routed experts").show_default();
  command.add_option("--top-k", flags->shape.top_k, "experts a token").show_default();
  command.add_option("--ranks", flags->ranks,
                     "each with its tokens and its share of the experts (default: as many as "
                     "processes were launched, 1 without a launcher)");
  command
      .add_option("--tp", flags->tp,
                  "of several ranks: that hold the same tokens and share every expert's matrices")
      .show_default();
  command
      .add_option("--moe-schedule", flags->moe_schedule,
                  fmt::format("of several ranks: the layer's order, {}; with --tp {}",
                              orders(false), orders(true)))
      .show_default();
  command.add_option("--moe-chunks", flags->moe_chunks, what_moe_chunks_are()).show_default();
  command.add_option("--device", flags->device, "what computes: cpu, cuda or cuda:N")
      .show_default();
  command.add_option("--precision", flags->precision, one_of_names<strategy::Precision>(kRuns))
      .show_default();
  command.add_option("--rounds", flags->world.rounds, "rounds; medians are reported")
      .show_default();
  add_world_bench_flags(command, flags->world);
  command.add_flag("--serve", flags->world.serve,
                   "answer lines 'tokens experts top_k' by seconds (for scripts/bench_moe); of "
                   "several ranks, 'steps TOKENS N' and 'limit TOKENS N'");
  command.add_flag("--json", flags->world.json, "print JSON");
  return [flags] { return run_moe(*flags); };
}

}  // namespace piper::cli
