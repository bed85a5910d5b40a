// piper export: a strategy as the flags or the configuration of another trainer.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/suggest.h>
#include <piper/cli/command.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/export/export.h>
#include <piper/model/import.h>

#include <fstream>
#include <iostream>
#include <memory>

namespace piper::cli {
namespace {

struct Flags {
  StrategyFlags strategy;
  std::string to, out;
  bool json = false;
};

exporting::Trainer trainer_of(const std::string& text) {
  const auto trainer = exporting::trainer_from(text);
  if (!trainer)
    throw InvalidInput(fmt::format("--to is '{}'; allowed: {}{}", text,
                                   fmt::join(exporting::trainer_names(), ", "),
                                   did_you_mean(text, exporting::trainer_names())));
  return *trainer;
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw IoError(path + ": cannot be written");
}

int run(const Flags& flags) {
  const exporting::Trainer trainer = trainer_of(flags.to);
  const model::Model model = model::load_model(flags.strategy.model);
  const strategy::Strategy strategy = strategy_from_flags(flags.strategy, model);
  const exporting::Exported exported = exporting::export_strategy(trainer, model, strategy);
  const bool works = exported.cannot.empty();
  if (works && !flags.out.empty()) write(flags.out, exported.text);
  if (flags.json) {
    std::cout << Json{{"to", flags.to},
                      {"text", exported.text},
                      {"differs", exported.differs},
                      {"cannot", exported.cannot}}
                     .dump(2)
              << "\n";
    return works ? 0 : 1;
  }
  for (const std::string& line : exported.cannot)
    fmt::print(stderr, "piper: {} cannot run this plan: {}\n", flags.to, line);
  if (!works) return 1;
  if (flags.out.empty()) fmt::print("{}", exported.text);
  for (const std::string& line : exported.differs) fmt::print(stderr, "note: {}\n", line);
  if (!flags.out.empty()) fmt::print("written: {}\n", flags.out);
  return 0;
}

}  // namespace

Run add_export(Subcommand command) {
  auto flags = std::make_shared<Flags>();
  add_strategy_flags(command, flags->strategy);
  command.add_option("--to", flags->to, "megatron, deepspeed, torchtitan or nemo")
      .required()
      .type_name("TRAINER");
  command.add_option("--out", flags->out, "write it to this file").check(writable_file());
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run(*flags); };
}

}  // namespace piper::cli
