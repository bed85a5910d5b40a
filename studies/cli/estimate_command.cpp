// piper-studies estimate: equations 3, 4 and 6 of the Piper paper, as printed, for a strategy,
// beside the memory that `piper estimate` predicts for it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/command.h>
#include <piper/cli/console.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cost/estimator.h>
#include <studies/paper/piper.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace piper::studies {
namespace {

struct EstimateFlags {
  cli::StrategyFlags strategy;
  std::string load, trainer;  // "" = not given
  bool flash_attention = true, json = false;
  int64_t ffn_values = 3;
};

// Eq. 1-6 for the same strategy; b is the batch of one expert-data replica (PP x EP devices).
struct PaperForm {
  double memory_bytes = 0;        // eq. 3 or 4, stage 0
  double all_to_all_seconds = 0;  // eq. 6, one layer's forward of one micro-batch
  double alpha = 0;               // M / PP
};

PaperForm paper_form(const EstimateFlags& flags, const cli::Priced& priced) {
  const strategy::Strategy& s = priced.strategy;
  const paper::PaperModel shape = paper::from_model(priced.model);
  const paper::Options options{.flash_attention = flags.flash_attention,
                               .ffn_values = static_cast<int>(flags.ffn_values)};
  const paper::Degrees degrees{.pp = s.mesh.pp, .ep = s.mesh.ep};
  const int64_t sequences = s.global_batch_sequences / s.mesh.edp();
  const paper::Batch batch{.sequences = static_cast<double>(sequences), .sequence = s.sequence};
  PaperForm form;
  form.alpha = static_cast<double>(s.num_micro_batches) / static_cast<double>(s.mesh.pp);
  form.memory_bytes = s.schedule == strategy::PipelineSchedule::kGPipe
                          ? paper::memory_gpipe(shape, batch, degrees, options)
                          : paper::memory_1f1b(shape, batch, degrees, form.alpha, 0, options);
  const paper::Batch micro_batch{
      .sequences = batch.sequences / static_cast<double>(s.num_micro_batches),
      .sequence = s.sequence};
  for (const cluster::Level& level : priced.cluster.levels)
    if (level.num_nics > 0 && level.nic_bytes_per_second > 0) {
      form.all_to_all_seconds =
          paper::all_to_all_seconds(shape, micro_batch, s.mesh.ep, level.nic_bytes_per_second,
                                    static_cast<double>(priced.cluster.devices_per_node()) /
                                        static_cast<double>(level.num_nics));
      break;
    }
  return form;
}

const char* memory_equation(const strategy::Strategy& s) {
  return s.schedule == strategy::PipelineSchedule::kGPipe ? "eq. 3" : "eq. 4";
}

// Degrees of the strategy that the equations do not know: "tp 2", ...
std::vector<std::string> unknown_degrees(const strategy::Mesh& mesh) {
  std::vector<std::string> unknown;
  for (const auto& [name, degree] :
       {std::pair{"tp", mesh.tp}, {"cp", mesh.cp}, {"etp", mesh.etp}, {"vpp", mesh.vpp}})
    if (degree > 1) unknown.push_back(fmt::format("{} {}", name, degree));
  return unknown;
}

int run_estimate(const EstimateFlags& flags) {
  const cli::Priced priced = cli::priced_from_flags(flags.strategy);
  const strategy::Strategy& s = priced.strategy;
  const cost::TrainerProfile trainer = cli::trainer_of(flags.trainer, s, priced.cluster);
  const double imbalance = cli::imbalance_of(cli::load_of(flags.load, s), s, priced.model);
  const cost::Estimate estimate =
      cost::make_estimator_of(s, priced.model, priced.cluster, trainer)->estimate(s, imbalance);
  const PaperForm form = paper_form(flags, priced);
  const std::vector<std::string> unknown = unknown_degrees(s.mesh);
  if (flags.json) {
    const Json json{
        {"model", priced.model.name},
        {"cluster", priced.cluster.name},
        {"trainer", trainer.name},
        {"paper",
         {{"memory_bytes", form.memory_bytes},
          {"memory_equation", memory_equation(s)},
          {"all_to_all_seconds", form.all_to_all_seconds},
          {"alpha", form.alpha},
          {"unknown_degrees", unknown}}},
        {"predicted", {{"peak_bytes", estimate.peak_bytes}, {"stage", estimate.fullest_stage}}}};
    cli::say_json(json);
    return 0;
  }
  cli::say("{} on {}\npaper, as printed: stage 0 {} ({}, alpha {:.2f})", priced.model.name,
           priced.cluster.name, format_bytes(form.memory_bytes), memory_equation(s), form.alpha);
  if (form.all_to_all_seconds > 0)
    cli::say(", exchange of a layer's forward at least {} (eq. 6)",
             format_seconds(form.all_to_all_seconds));
  cli::say("\npredicted for {}: stage {} {} (see piper estimate)\n", trainer.name,
           estimate.fullest_stage, format_bytes(estimate.peak_bytes));
  if (!unknown.empty())
    cli::say("the equations do not know {}\n", fmt::format("{}", fmt::join(unknown, ", ")));
  return 0;
}

}  // namespace

cli::Run add_estimate(cli::Subcommand command) {
  auto flags = std::make_shared<EstimateFlags>();
  cli::add_strategy_flags(command, flags->strategy);
  command.add_option("--load", flags->load,
                     "expert load of the predicted memory, as for piper estimate");
  command.add_flag("--flash-attention,!--no-flash-attention", flags->flash_attention,
                   "2bHs instead of 4bHs^2 (on)");
  command
      .add_option("--ffn-values", flags->ffn_values, "values kept a token and expert, 3 or 4 d_ffn")
      .check(cli::integer_in(3, 4))
      .show_default();
  cli::add_trainer_flag(command, flags->trainer, cli::kAsItsFile);
  command.add_flag("--json", flags->json, "print the result as JSON");
  return [flags] { return run_estimate(*flags); };
}

}  // namespace piper::studies
