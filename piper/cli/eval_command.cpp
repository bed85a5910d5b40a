// piper eval: the loss of a Hugging Face folder of weights on a corpus.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cli/command.h>
#include <piper/cli/load_corpus.h>
#include <piper/cli/read_model.h>
#include <piper/cli/subcommand.h>
#include <piper/model/import.h>
#include <piper/model/trainable.h>
#include <piper/report/progress.h>
#include <piper/runtime/bench_device.h>
#include <piper/runtime/player.h>
#include <piper/train/data.h>
#include <piper/train/evaluate.h>
#include <piper/train/hf_weights.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>

namespace piper::cli {
namespace {

struct Flags {
  std::string weights, split = "all", device = "cpu";
  std::vector<std::string> data, ignore;
  int64_t sequence = 0, windows = 0;
  double validation = 0.05;
  bool fp64 = false, json = false;
};

train::Corpus part_of(const train::Corpus& corpus, const Flags& flags) {
  if (flags.split == "all") return corpus;
  train::CorpusSplit split = train::split_corpus(corpus, flags.validation);
  return flags.split == "train" ? split.train : split.validation;
}

int run(const Flags& flags) {
  const runtime::BenchDevice device = runtime::parse_bench_device(flags.device);
  const model::Model model = read_model(flags.weights, flags.ignore);
  if (const auto problems = model::untrainable(model); !problems.empty())
    throw InvalidInput(problems);
  const train::WeightFolder folder(flags.weights);
  train::check_weights(folder, model);
  const train::Corpus corpus = part_of(load_corpus(flags.data, model.vocabulary), flags);
  train::check_window(corpus, flags.sequence);
  const strategy::Precision precision =
      flags.fp64 ? strategy::Precision::kFp64 : strategy::Precision::kFp32;
  const strategy::Strategy strategy = train::one_rank(model, flags.sequence, 1, precision);
  const auto stage =
      nn::make_stage(model, strategy, Rank(0),
                     {.dtype = runtime::scalar_type(precision), .device = device.device});
  train::load_weights(folder, stage->named_pieces(), model.tied_embeddings);

  const int64_t all = train::num_windows(corpus, flags.sequence);
  report::Progress bar({.label = "eval",
                        .total = flags.windows > 0 ? std::min(flags.windows, all) : all,
                        .unit = "windows"});
  const train::Evaluation result =
      train::evaluate(*stage, model, corpus, flags.sequence, flags.windows,
                      [&](int64_t done, int64_t) { bar.set(done); });
  bar.finish();
  if (!std::isfinite(result.loss))
    throw InvalidInput(
        fmt::format("{}: the loss is {}: its weights hold or produce values that are not finite",
                    flags.weights, result.loss));
  if (flags.json) {
    std::cout << Json{{"loss", result.loss},
                      {"tokens", result.tokens},
                      {"perplexity", std::exp(result.loss)},
                      {"sequence", flags.sequence}}
                     .dump(2)
              << "\n";
  } else {
    fmt::print("loss {:.6f} nats a token over {} tokens (perplexity {:.3f})\n", result.loss,
               result.tokens, std::exp(result.loss));
  }
  return 0;
}

}  // namespace

Run add_eval(Subcommand command) {
  auto flags = std::make_shared<Flags>();
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
  command.add_option("--sequence", flags->sequence, "tokens of a window")
      .required()
      .check(integer_in(1, int64_t{1} << 24));
  command.add_option("--device", flags->device, "what computes: cpu, cuda or cuda:N")
      .show_default();
  command.add_flag("--fp64", flags->fp64, "compute in double precision");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
