// piper export: a strategy as the flags or the configuration of another trainer.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/standard_input.h>
#include <piper/base/suggest.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/enum_help.h>
#include <piper/cli/read_model.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cli/subcommand.h>
#include <piper/export/export.h>
#include <piper/files/output.h>
#include <piper/model/import.h>

#include <algorithm>
#include <memory>
#include <optional>

namespace piper::cli {
namespace {

struct ExportFlags {
  StrategyFlags strategy;
  std::string file, to, out, trainer;
  bool json = false;
};

exporting::Trainer target_of(const std::string& text) {
  const auto trainer = find_by_name<exporting::Trainer>(text);
  if (!trainer)
    throw InvalidInput(fmt::format("--to is '{}'; allowed: {}{}", text,
                                   fmt::join(names_of<exporting::Trainer>(), ", "),
                                   did_you_mean(text, names_of<exporting::Trainer>())));
  return *trainer;
}

// The strategy's file by itself says for which model it is, by name.
StrategyFlags completed(const ExportFlags& flags) {
  StrategyFlags f = flags.strategy;
  if (!flags.file.empty() && !f.strategy.empty())
    throw InvalidInput("a strategy file and --strategy are both given; allowed: one of them");
  if (!flags.file.empty()) f.strategy = flags.file;
  f.model = model_of(f);
  return f;
}

// Nothing where the strategy names a cluster that is not built in, or none.
std::optional<cluster::Cluster> machine_of(const StrategyFlags& flags,
                                           const strategy::Strategy& strategy) {
  const std::vector<std::string> known = cluster::builtin_clusters();
  if (flags.cluster.empty() && std::ranges::find(known, strategy.cluster) == known.end())
    return std::nullopt;
  return cluster_of(flags, strategy);
}

int run_export(const ExportFlags& flags) {
  const exporting::Trainer trainer = target_of(flags.to);
  const StrategyFlags of = completed(flags);
  const model::Model model = read_model(of.model, of.ignore);
  const strategy::Strategy strategy = strategy_from_flags(of, model);
  const std::optional<cost::TrainerProfile> priced = trainer_of(flags.trainer, strategy);
  const std::optional<cluster::Cluster> machine = machine_of(of, strategy);
  const exporting::Exported exported = exporting::export_strategy(
      trainer, model, strategy, priced ? &*priced : nullptr, machine ? &*machine : nullptr);
  const bool works = exported.cannot.empty();
  if (works && !flags.out.empty()) files::write_text_file(flags.out, exported.text);
  if (flags.json) {
    say_json(Json{{"to", flags.to},
                  {"text", exported.text},
                  {"differs", exported.differs},
                  {"cannot", exported.cannot}});
    return works ? 0 : 2;
  }
  for (const std::string& line : exported.cannot)
    say_error(fmt::format("{} cannot run this plan: {}", flags.to, line));
  if (!works) return 2;
  if (flags.out.empty()) say("{}", Lines{exported.text});
  for (const std::string& line : exported.differs) say_aside("note: " + line);
  if (!flags.out.empty()) say("written: {}\n", flags.out);
  return 0;
}

}  // namespace

Run add_export(Subcommand command) {
  auto flags = std::make_shared<ExportFlags>();
  add_strategy_flags(command, flags->strategy);
  command.add_option("file", flags->file, "strategy that `piper plan --out` wrote; as --strategy")
      .check(existing_file());
  command.add_option("--to", flags->to, one_of_names<exporting::Trainer>())
      .required()
      .type_name("TRAINER");
  add_trainer_flag(command, flags->trainer,
                   " that the plan was priced for: what it hides is exported (the plan's own)");
  command.add_output("--out", flags->out, "write it to this file");
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_export(*flags); };
}

}  // namespace piper::cli
