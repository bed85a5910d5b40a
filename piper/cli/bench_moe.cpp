// piper bench moe: one mixture layer against the products that it is made of; with --serve, a partner for
// scripts/bench_moe, which runs transformers' layer and this one in turn.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cli/bench.h>
#include <piper/nn/bench_moe_layer.h>
#include <piper/nn/counting_allocator.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>

namespace piper::cli {
namespace {

struct Flags {
  nn::MoeLayerShape shape;
  int64_t rounds = 9;
  bool json = false, serve = false;
};

void check(const Flags& flags) {
  std::vector<std::string> problems;
  const auto in_range = [&](const char* flag, int64_t value, int64_t max) {
    if (value < 1 || value > max)
      problems.push_back(
          fmt::format("{} is {}; allowed: an integer from 1 to {}", flag, value, max));
  };
  in_range("--tokens", flags.shape.tokens, 1 << 20);
  in_range("--hidden", flags.shape.hidden, 1 << 16);
  in_range("--ffn", flags.shape.ffn, 1 << 17);
  in_range("--experts", flags.shape.num_experts, 4096);
  in_range("--top-k", flags.shape.top_k, std::max<int64_t>(1, flags.shape.num_experts));
  in_range("--rounds", flags.rounds, 10000);
  if (!problems.empty()) throw InvalidInput(problems);
}

void print(const Flags& flags, const nn::MoeLayerTimes& times) {
  const nn::MoeLayerShape& s = flags.shape;
  if (flags.json) {
    const Json json{{"tokens", s.tokens},
                    {"hidden", s.hidden},
                    {"ffn", s.ffn},
                    {"experts", s.num_experts},
                    {"top_k", s.top_k},
                    {"rounds", flags.rounds},
                    {"layer_seconds", times.layer_seconds},
                    {"gemm_seconds", times.gemm_seconds},
                    {"layer_over_gemms", times.ratio},
                    {"gemm_flops_per_second", times.flops / times.gemm_seconds}};
    std::puts(json.dump(2).c_str());
    return;
  }
  const std::string text = fmt::format(
      "mixture layer, forward and backward, fp32, one thread: {} tokens, hidden {}, ffn {}, {} "
      "experts, top {}\n"
      "  layer                {:9.2f} ms\n"
      "  its products alone   {:9.2f} ms  ({:.1f} GFLOP/s; the fastest of two weight layouts and "
      "the libraries here)\n"
      "  layer / products     {:9.3f}     (median of {} rounds, both sides in turn)\n",
      s.tokens, s.hidden, s.ffn, s.num_experts, s.top_k, times.layer_seconds * 1e3,
      times.gemm_seconds * 1e3, times.flops / times.gemm_seconds * 1e-9, times.ratio, flags.rounds);
  std::fputs(text.c_str(), stdout);
}

// Every line "tokens experts top_k" chooses a layer (the last one is kept while the line is the same) and is answered
// by the seconds of one forward and backward; hidden and ffn are the flags'.
int serve(const Flags& flags) {
  std::string line, last;
  std::unique_ptr<nn::MoeLayerBench> bench;
  while (std::getline(std::cin, line)) {
    if (line != last) {
      Flags asked = flags;
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

int run(const Flags& flags) {
  check(flags);
  nn::install_counting_allocator();  // as in training
  at::set_num_threads(1);
  if (flags.serve) return serve(flags);
  print(flags, nn::bench_moe_layer(flags.shape, flags.rounds));
  return 0;
}

}  // namespace

Run add_bench_moe(CLI::App& command) {
  const auto flags = std::make_shared<Flags>();
  command.add_option("--tokens", flags->shape.tokens, "tokens of the micro-batch")
      ->capture_default_str();
  command.add_option("--hidden", flags->shape.hidden, "hidden size")->capture_default_str();
  command.add_option("--ffn", flags->shape.ffn, "intermediate size of an expert")
      ->capture_default_str();
  command.add_option("--experts", flags->shape.num_experts, "routed experts")
      ->capture_default_str();
  command.add_option("--top-k", flags->shape.top_k, "experts a token")->capture_default_str();
  command.add_option("--rounds", flags->rounds, "rounds; medians are reported")
      ->capture_default_str();
  command.add_flag("--serve", flags->serve,
                   "answer lines 'tokens experts top_k' by seconds (for scripts/bench_moe)");
  command.add_flag("--json", flags->json, "print JSON");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
