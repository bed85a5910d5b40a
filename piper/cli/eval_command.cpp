// piper eval: the loss of a Hugging Face folder of weights on a corpus, on one rank or a mesh.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/hf_weights.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/load_corpus.h>
#include <piper/cli/meet_processes.h>
#include <piper/cli/read_model.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/model/import.h>
#include <piper/nn/product.h>
#include <piper/profile/bench_device.h>
#include <piper/report/progress.h>
#include <piper/strategy/runnable.h>
#include <piper/train/batches.h>
#include <piper/train/evaluate.h>
#include <piper/train/process_agreement.h>
#include <piper/train/run_check.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace piper::cli {
namespace {

struct EvalFlags {
  std::string weights, split = "all", device = "cpu";
  std::vector<std::string> data, ignore;
  StrategyFlags strategy;
  int64_t windows = 0;
  double validation = 0.05;
  bool fp64 = false, json = false;
};

data::Corpus part_of(const data::Corpus& corpus, const EvalFlags& flags) {
  if (flags.split == "all") return corpus;
  data::CorpusSplit split = data::split_corpus(corpus, flags.validation);
  return flags.split == "train" ? split.train : split.validation;
}

strategy::Strategy strategy_of(const EvalFlags& flags, const model::Model& model) {
  if (flags.strategy.strategy.empty() && !flags.strategy.sequence)
    throw InvalidInput("eval needs to know how long a window is; give --sequence, or --strategy");
  if (flags.fp64 && !flags.strategy.precision.empty() && flags.strategy.precision != "fp64")
    throw InvalidInput(fmt::format("--fp64 contradicts --precision {}; give one of them",
                                   flags.strategy.precision));
  strategy::Strategy s = strategy_from_flags(flags.strategy, model);
  if (flags.fp64) s.precision = strategy::Precision::kFp64;
  s.mtp_depth = 0;  // the model's own loss
  if (const auto problems = strategy::untrainable(model, s); !problems.empty())
    throw InvalidInput(problems);
  return s;
}

int run_eval(const EvalFlags& flags) {
  const std::vector<at::Device> devices = profile::parse_devices(flags.device);
  const model::Model model = read_model(flags.weights, flags.ignore);
  const strategy::Strategy given = strategy_of(flags, model);
  const checkpoint::WeightFolder folder(flags.weights);
  checkpoint::check_weights(folder, model);
  const data::Corpus corpus = part_of(load_corpus(flags.data, model.vocabulary), flags);
  data::check_window(corpus, given.sequence);

  const int64_t all = train::num_windows(corpus, given.sequence);
  const int64_t windows = flags.windows > 0 ? std::min(flags.windows, all) : all;
  const strategy::Strategy strategy = train::in_wide_batches(given, windows);
  report::Progress bar({.label = "eval", .total = windows, .unit = "windows"});
  const std::unique_ptr<comm::World> world = meet_processes(strategy.mesh.world());
  train::require_same_inputs(
      *world, {.model = model, .strategy = strategy, .corpus = corpus, .weights = flags.weights});
  train::require_agreement(*world, "number of windows", std::to_string(flags.windows));
  if (const std::string note = nn::first_call_note(); !note.empty() && world->process() == 0)
    say_aside(note);
  const train::RankDevices placed = train::place_on_devices(*world, devices);
  const train::Evaluation result =
      train::evaluate_on_mesh(*world, model, strategy, folder, corpus, flags.windows, placed,
                              [&](int64_t done, int64_t) { bar.set(done); });
  if (world->process() > 0) return 0;
  bar.finish();
  if (!std::isfinite(result.loss))
    throw InvalidInput(
        fmt::format("{}: the loss is {}: its weights hold or produce values that are not finite",
                    flags.weights, result.loss));
  if (flags.json) {
    say_json(Json{{"loss", result.loss},
                  {"tokens", result.tokens},
                  {"perplexity", std::exp(result.loss)},
                  {"sequence", strategy.sequence}});
  } else {
    say("loss {:.6f} nats a token over {} tokens (perplexity {:.3f})\n", result.loss, result.tokens,
        std::exp(result.loss));
  }
  return 0;
}

}  // namespace

Run add_eval(Subcommand command) {
  auto flags = std::make_shared<EvalFlags>();
  command
      .add_option("--weights", flags->weights, "Hugging Face folder: config.json and safetensors")
      .required();
  add_ignore_flag(command, flags->ignore);
  command
      .add_option("--data", flags->data,
                  "text file or folder, read as bytes, or the prefix of an indexed dataset "
                  "(PREFIX.idx, PREFIX.bin); may be repeated")
      .required()
      .type_name("PATH");
  command
      .add_option("--split", flags->split,
                  "all of the data, or a part as `train --validation` divides it")
      .check(one_of({"all", "train", "validation"}))
      .show_default();
  command
      .add_option("--validation", flags->validation,
                  "fraction at the end that --split leaves out or takes")
      .check(number_in(0.0, 1.0))
      .show_default();
  command.add_option("--windows", flags->windows, "only the first windows; 0 = all")
      .check(integer_in(0, int64_t{1} << 40))
      .show_default();
  add_strategy_flags(command, flags->strategy, ModelFlag::kNone);
  command
      .add_option("--device", flags->device,
                  "what computes: cpu, cuda, cuda:N, or cuda:N,M, which ranks take in turn")
      .show_default();
  command.add_flag("--fp64", flags->fp64, "compute in double precision: --precision fp64");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_eval(*flags); };
}

}  // namespace piper::cli
