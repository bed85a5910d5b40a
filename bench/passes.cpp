// piper bench passes: the element-wise work of a mixture layer, pass by pass, against a copy of as
// many bytes on the same device.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <bench/benches.h>
#include <bench/world.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/median.h>
#include <piper/cli/console.h>
#include <piper/cli/enum_help.h>
#include <piper/cli/strategy_flags.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/nn/aten.h>
#include <piper/nn/tensor_ops.h>
#include <piper/profile/bench_device.h>
#include <piper/profile/bench_operations.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace piper::cli {
namespace {

struct PassesFlags {
  int64_t tokens = 4096, hidden = 1024, ffn = 2048, top_k = 2, vocabulary = 32768, rounds = 7;
  std::string device = "cpu", precision = "fp32";
  bool json = false;
};

struct Pass {
  std::string name;
  double bytes = 0;  // that have to be read and written, each once
  std::function<void()> run;
};

double seconds_of(const profile::BenchDevice& device, const std::function<void()>& run,
                  int64_t times) {
  device.wait();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) run();
  device.wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
         static_cast<double>(times);
}

// Rows of the copies of tokens: a permutation, so that every copy has its row.
at::Tensor positions(int64_t tokens, int64_t k, const at::Device& device) {
  return at::randperm(tokens * k, at::kLong).to(at::kInt).view({tokens, k}).to(device);
}

class Passes {
 public:
  Passes(const PassesFlags& flags, const profile::OperandsOn& on)
      : flags_(flags),
        on_(on),
        options_(on.device.with(on.dtype)),
        main_(on.device.with(nn::main_type(on.dtype))),
        element_(static_cast<double>(at::elementSize(on.dtype))) {}

  std::vector<Pass> all() const {
    std::vector<Pass> passes{norm(false), norm(true), rotation(), swiglu(false), swiglu(true)};
    for (Pass& pass : rows()) passes.push_back(std::move(pass));
    passes.push_back(cross_entropy());
    const int64_t parameters = 3 * flags_.hidden * flags_.ffn;
    passes.push_back({"AdamW", profile::adamw_bytes(on_.dtype) * real(parameters),
                      profile::adamw(parameters, on_)()});
    return passes;
  }
  // A copy that reads and writes as many bytes.
  Pass copy_for(const Pass& pass) const {
    const auto half = static_cast<int64_t>(std::ceil(pass.bytes / 2));
    return {"copy", 2 * real(half), profile::copy_bytes(half, on_.device, on_.device)()};
  }

 private:
  static double real(int64_t n) { return static_cast<double>(n); }
  at::Tensor wide(int64_t rows, int64_t width) const { return at::rand({rows, width}, options_); }
  double bytes(double elements) const { return elements * element_; }

  Pass norm(bool backward) const {
    return {backward ? "norm, backward" : "norm",
            bytes((backward ? 3 : 2) * real(flags_.tokens * flags_.hidden)),
            profile::rms_norm(flags_.tokens, flags_.hidden, backward, on_)()};
  }
  Pass rotation() const {
    constexpr int64_t kHead = 128;
    const int64_t heads = std::max<int64_t>(1, flags_.hidden / kHead);
    const at::Tensor x = at::rand({flags_.tokens, heads, kHead}, options_);
    const nn::RopeTable table =
        nn::make_rope_table(flags_.tokens, kHead, {}, nn::main_type(on_.dtype), on_.device.device);
    return {"rotation", bytes(2 * real(x.numel())),
            [=, tokens = flags_.tokens] { nn::rotate_(x, table, tokens, false); }};
  }
  Pass swiglu(bool backward) const {
    const int64_t num_rows = flags_.tokens * flags_.top_k;
    const at::Tensor h = wide(num_rows, 2 * flags_.ffn), act = wide(num_rows, flags_.ffn);
    const double read_and_written = (backward ? 6 : 3) * real(act.numel());
    if (backward)
      return {"SwiGLU, backward", bytes(read_and_written), [=] { nn::swiglu_backward_(h, act); }};
    return {"SwiGLU", bytes(read_and_written), [=] { nn::swiglu_out(act, h); }};
  }
  // To the order of the experts and back.
  std::vector<Pass> rows() const {
    const int64_t tokens = flags_.tokens, k = flags_.top_k, width = flags_.hidden;
    const at::Tensor x = wide(tokens, width), returned = wide(tokens * k, width),
                     out = at::empty_like(x), g_returned = at::empty_like(returned);
    const at::Tensor weights = at::rand({tokens * k}, main_), g_weights = at::empty_like(weights);
    const at::Tensor position = positions(tokens, k, on_.device.device);
    const at::Tensor token =
        positions(tokens * k, 1, on_.device.device).view({-1}).remainder(tokens).to(at::kInt);
    const double of_tokens = real(x.numel()), of_rows = real(returned.numel());
    // A token's row is read for each of its copies, which lie far apart: from a cache where all
    // rows fit into one.
    constexpr double kLargestCache = 128e6;
    const double read = bytes(of_tokens) > kLargestCache ? of_rows : of_tokens;
    return {{"permute", bytes(read + of_rows), [=] { nn::gather_rows_out(g_returned, x, token); }},
            {"merge (unpermute)", bytes(2 * of_tokens + of_rows),
             [=] { nn::merge_out(out, returned, weights, position, x); }},
            {"merge, backward", bytes(of_tokens + 2 * of_rows), [=] {
               nn::merge_backward_out(g_returned, g_weights, x, returned, weights, position);
             }}};
  }
  Pass cross_entropy() const {
    const int64_t tokens = std::max<int64_t>(1, flags_.tokens / 16);
    const at::Tensor logits = wide(tokens, flags_.vocabulary);
    const at::Tensor targets =
        at::arange(tokens, on_.device.with(at::kLong)).remainder(flags_.vocabulary);
    return {"cross-entropy", bytes(2 * real(logits.numel())),
            [=] { nn::cross_entropy_(logits, targets, true, 1e-3); }};
  }

  const PassesFlags& flags_;
  const profile::OperandsOn on_;
  const at::TensorOptions options_, main_;
  const double element_;
};

struct Measured {
  std::string name;
  double bytes = 0, seconds = 0;  // the median
  double of_copy = 0;             // its rate over that of the copy of the same round, the median
};

std::vector<Measured> measure(const PassesFlags& flags, const profile::OperandsOn& on) {
  const Passes passes(flags, on);
  constexpr double kLeastSeconds = 0.02;  // of a measurement, in which a launch is nothing
  const auto times_of = [&](const Pass& pass) {
    seconds_of(on.device, pass.run, 1);
    return static_cast<int64_t>(
        std::ceil(kLeastSeconds / std::max(seconds_of(on.device, pass.run, 2), 1e-7)));
  };
  std::vector<Measured> measured;
  for (const Pass& pass : passes.all()) {
    const Pass copy = passes.copy_for(pass);
    const int64_t times = times_of(pass), copy_times = times_of(copy);
    std::vector<double> seconds, of_copy;
    for (int64_t round = 0; round < flags.rounds; ++round) {
      const double copy_rate = copy.bytes / seconds_of(on.device, copy.run, copy_times);
      seconds.push_back(seconds_of(on.device, pass.run, times));
      of_copy.push_back(pass.bytes / seconds.back() / copy_rate);
    }
    measured.push_back({pass.name, pass.bytes, median(seconds), median(of_copy)});
  }
  return measured;
}

void print(const PassesFlags& flags, const std::vector<Measured>& measured) {
  if (flags.json) {
    Json passes = Json::array();
    for (const Measured& pass : measured)
      passes.push_back({{"name", pass.name},
                        {"bytes", pass.bytes},
                        {"seconds", pass.seconds},
                        {"bytes_per_second", pass.bytes / pass.seconds},
                        {"of_copy", pass.of_copy}});
    say_json({{"device", flags.device}, {"precision", flags.precision}, {"passes", passes}});
    return;
  }
  say("{}, {}: {} tokens of {}, ffn {}, top {}, vocabulary {}\n{:20} {:>10} {:>8} {:>12}\n",
      flags.device == "cpu" ? "cpu, one thread" : flags.device, flags.precision, flags.tokens,
      flags.hidden, flags.ffn, flags.top_k, flags.vocabulary, "", "ms", "GB/s", "/ a copy's");
  for (const Measured& pass : measured)
    say("{:20} {:10.3f} {:8.1f} {:12.2f}\n", pass.name, pass.seconds * 1e3,
        pass.bytes / pass.seconds * 1e-9, pass.of_copy);
}

int run_passes(const PassesFlags& flags) {
  std::vector<std::string> problems;
  check_count("--tokens", flags.tokens, 1 << 20, problems);
  check_count("--hidden", flags.hidden, 1 << 16, problems);
  check_count("--ffn", flags.ffn, 1 << 17, problems);
  check_count("--top-k", flags.top_k, 64, problems);
  check_count("--vocabulary", flags.vocabulary, 1 << 20, problems);
  check_count("--rounds", flags.rounds, 10000, problems);
  const auto precision = parse_word<strategy::Precision>("--precision", flags.precision);
  if (!strategy::runs(precision))
    problems.push_back(fmt::format("--precision is '{}'; allowed: {}", flags.precision,
                                   fmt::join(names_where<strategy::Precision>(kRuns), ", ")));
  if (!problems.empty()) throw InvalidInput(problems);
  const profile::OperandsOn on{.device = profile::parse_bench_device(flags.device),
                               .dtype = executor::scalar_type(precision)};
  at::set_num_threads(1);
  // Passes run in place again and again, and what they leave becomes small.
  at::globalContext().setFlushDenormal(true);
  print(flags, measure(flags, on));
  return 0;
}

}  // namespace

Run add_bench_passes(Subcommand command) {
  const auto flags = std::make_shared<PassesFlags>();
  command.add_option("--tokens", flags->tokens, "tokens of the micro-batch").show_default();
  command.add_option("--hidden", flags->hidden, "hidden size").show_default();
  command.add_option("--ffn", flags->ffn, "intermediate size of an expert").show_default();
  command.add_option("--top-k", flags->top_k, "experts a token").show_default();
  command.add_option("--vocabulary", flags->vocabulary, "width of the logits").show_default();
  command.add_option("--device", flags->device, "what computes: cpu, cuda or cuda:N")
      .show_default();
  command.add_option("--precision", flags->precision, one_of_names<strategy::Precision>(kRuns))
      .show_default();
  command.add_option("--rounds", flags->rounds, "rounds; medians are reported").show_default();
  command.add_flag("--json", flags->json, "print JSON");
  return [flags] { return run_passes(*flags); };
}

}  // namespace piper::cli
