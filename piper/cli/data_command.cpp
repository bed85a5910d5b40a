// piper data build, piper data show: indexed datasets of tokens (PREFIX.bin, PREFIX.idx).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/file_reader.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/data/build_dataset.h>
#include <piper/data/indexed_dataset.h>
#include <piper/executor/clock.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>

#include <filesystem>
#include <memory>

namespace piper::cli {
namespace {

namespace fs = std::filesystem;

using Facts = std::vector<std::pair<std::string, std::string>>;

void print_facts(const Facts& facts) {
  report::Table table{.columns = {{""}, {"", report::Align::kRight}}};
  for (const auto& [name, value] : facts) table.rows.push_back({name, value});
  say("{}", Lines{report::to_text(table)});
}

struct BuildFlags {
  std::vector<std::string> inputs;
  std::string out, tokenizer = "bytes", jsonl_key;
  int64_t vocabulary = 0;
  bool append_eod = false, overwrite = false, json = false;
};

// Bytes are the one tokenizer that is built in: byte-pair encoding has no library in the
// distributions that Piper is built on.
void check_tokenizer(const std::string& tokenizer) {
  if (tokenizer != "bytes")
    throw InvalidInput(fmt::format(
        "--tokenizer is {}; allowed: bytes (with a tokenizer.json use scripts/tokenize, or give "
        "JSONL of integer arrays with --jsonl-key tokens)",
        tokenizer));
}

int64_t bytes_of(const std::vector<std::string>& inputs) {
  int64_t bytes = 0;
  for (const std::string& input : inputs) {
    if (std::error_code error; !std::filesystem::exists(input, error))
      throw InvalidInput(fmt::format("--input {}: no such file or folder", input));
    bytes += FileReader(input).size();
  }
  return bytes;
}

int build(const BuildFlags& flags) {
  check_tokenizer(flags.tokenizer);
  data::DatasetRequest request{.inputs = {flags.inputs.begin(), flags.inputs.end()},
                               .prefix = flags.out,
                               .append_end_of_document = flags.append_eod,
                               .vocabulary = flags.vocabulary,
                               .overwrite = flags.overwrite};
  if (!flags.jsonl_key.empty()) request.jsonl_key = flags.jsonl_key;
  report::Progress bar({.label = "data", .total = bytes_of(flags.inputs), .unit = "bytes"});
  request.progress = [&](int64_t done) { bar.set(done); };
  const double before = executor::now_seconds();
  const data::DatasetSummary summary = data::build_dataset(request);
  const double seconds = executor::now_seconds() - before;
  bar.finish();
  const int64_t bytes = data::IndexedDataset(request.prefix).num_bytes();
  const double tokens_per_second = static_cast<double>(summary.tokens) / seconds;
  if (flags.json) {
    Json json = {{"prefix", flags.out},
                 {"documents", summary.documents},
                 {"empty_documents", summary.empty_documents},
                 {"tokens", summary.tokens},
                 {"token_type", data::name(summary.type)},
                 {"vocabulary", summary.vocabulary == 0 ? Json() : Json(summary.vocabulary)},
                 {"input_bytes", summary.input_bytes},
                 {"bytes", bytes},
                 {"seconds", seconds},
                 {"tokens_per_second", tokens_per_second}};
    say_json(json);
    return 0;
  }
  print_facts(
      {{"documents", fmt::format("{}", summary.documents)},
       {"empty documents, left out", fmt::format("{}", summary.empty_documents)},
       {"tokens", fmt::format("{}", summary.tokens)},
       {"token type", data::name(summary.type)},
       {"vocabulary", summary.vocabulary == 0 ? "unknown" : fmt::format("{}", summary.vocabulary)},
       {"read", format_bytes(static_cast<double>(summary.input_bytes))},
       {"written", format_bytes(static_cast<double>(bytes))},
       {"tokens/s", format_count(tokens_per_second)}});
  say("train on it with: piper train --data {}\n", flags.out);
  return 0;
}

struct ShowFlags {
  std::string prefix;
  int64_t tokens = 16;
  bool json = false;
};

int show(const ShowFlags& flags) {
  data::names_indexed_dataset(flags.prefix);  // says when one of the two is missing
  const data::IndexedDataset dataset(flags.prefix);
  std::vector<int64_t> first(static_cast<size_t>(std::min(flags.tokens, dataset.num_tokens())));
  dataset.read(0, first);
  report::Progress bar({.label = "read", .total = dataset.num_tokens(), .unit = "tokens"});
  const int64_t largest =
      data::check_tokens(dataset, 0, [&](int64_t done, int64_t) { bar.set(done); });
  bar.finish();
  if (flags.json) {
    const Json json = {{"prefix", flags.prefix},
                       {"documents", dataset.num_documents()},
                       {"sequences", dataset.num_sequences()},
                       {"tokens", dataset.num_tokens()},
                       {"token_type", data::name(dataset.type())},
                       {"largest_token", largest < 0 ? Json() : Json(largest)},
                       {"bytes", dataset.num_bytes()},
                       {"first_tokens", first}};
    say_json(json);
    return 0;
  }
  print_facts({{"documents", fmt::format("{}", dataset.num_documents())},
               {"sequences", fmt::format("{}", dataset.num_sequences())},
               {"tokens", fmt::format("{}", dataset.num_tokens())},
               {"token type", data::name(dataset.type())},
               {"largest token", largest < 0 ? "none" : fmt::format("{}", largest)},
               {"vocabulary, at least", fmt::format("{}", largest + 1)},
               {"on disk", format_bytes(static_cast<double>(dataset.num_bytes()))}});
  say("first tokens: {}\n", fmt::join(first, " "));
  return 0;
}

Run add_build(Subcommand command) {
  auto flags = std::make_shared<BuildFlags>();
  command
      .add_option(
          "--input", flags->inputs,
          "text files, a document each, or JSONL (*.jsonl), a document a line; may be repeated")
      .required()
      .type_name("FILE");
  command.add_option("--out", flags->out, "writes PREFIX.bin and PREFIX.idx")
      .required()
      .type_name("PREFIX");
  command.add_option("--tokenizer", flags->tokenizer, "bytes: every byte is a token, 0 to 255")
      .show_default();
  command.add_option("--jsonl-key", flags->jsonl_key,
                     "read every input as JSONL; the key holds a text or an array of integers, the "
                     "tokens themselves (default: text, of *.jsonl)");
  command
      .add_option("--vocabulary", flags->vocabulary,
                  "of arrays of integers: what all tokens stay below; picks how they are stored "
                  "(default: int32)")
      .check(integer_in(1, int64_t{1} << 31));
  command.add_flag("--append-eod", flags->append_eod,
                   "end every document of bytes with token 256; the vocabulary is then 257");
  command.add_flag("--overwrite", flags->overwrite, "replace a dataset of that prefix");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return build(*flags); };
}

Run add_show(Subcommand command) {
  auto flags = std::make_shared<ShowFlags>();
  command.add_option("prefix", flags->prefix, "PREFIX of PREFIX.bin and PREFIX.idx")
      .required()
      .type_name("PREFIX");
  command.add_option("--tokens", flags->tokens, "how many of the first tokens to show")
      .check(integer_in(0, int64_t{1} << 20))
      .show_default();
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return show(*flags); };
}

}  // namespace

Run add_data(Subcommand command) {
  command.require_subcommand();
  const Subcommand build =
      command.add_subcommand("build", "make a dataset of text or token arrays");
  const Subcommand show = command.add_subcommand("show", "what a dataset holds; checks all of it");
  const Run run_build = add_build(build), run_show = add_show(show);
  return [build, run_build, run_show] { return build.parsed() ? run_build() : run_show(); };
}

}  // namespace piper::cli
