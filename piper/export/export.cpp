#include <fmt/format.h>
#include <piper/export/export.h>
#include <piper/export/fields.h>
#include <piper/export/offers.h>

#include <algorithm>
#include <string>

namespace piper::exporting {
namespace {

void append(std::vector<std::string>& lines, const std::vector<std::string>& more) {
  lines.insert(lines.end(), more.begin(), more.end());
}

// Profiles of one software, under the same rules, price it in different ways: what one of them runs,
// the software does.
bool runs_by_another_profile(const TrainerTraits& trainer, const strategy::Strategy& strategy) {
  return std::ranges::any_of(cost::builtin_trainers(), [&](const std::string& name) {
    if (!name.starts_with(trainer.family)) return false;
    const cost::TrainerProfile profile = cost::load_trainer(name);
    return profile.rules != nullptr &&
           not_offered(trainer.software, profile.offers, strategy).empty();
  });
}

}  // namespace

Exported export_strategy(Trainer trainer, const model::Model& model,
                         const strategy::Strategy& strategy, const cost::TrainerProfile* priced,
                         const cluster::Cluster* machine) {
  const TrainerTraits& t = traits(trainer);
  const cost::TrainerProfile own = cost::load_trainer(t.profile);
  const cost::Offers& offers = own.offers;
  const bool is_of_family = priced != nullptr && priced->name.starts_with(t.family);
  Job job{model, strategy, machine};
  if (own.rules != nullptr)
    job.ruling = cost::rule(*own.rules, {&model, &strategy, machine, is_of_family ? priced : &own});
  Exported exported = t.write(job);
  if (strategy.reduction_start != strategy::ReductionStart::kReady)
    exported.differs.push_back(
        fmt::format("reductions {}: {} sums gradients as soon as they are there",
                    strategy::name(strategy.reduction_start), t.software));
  append(exported.differs, job.ruling.warns);
  place_fields(trainer, strategy, exported);
  // One stage computes the same in one part or in two, in pairs or one after the other.
  strategy::Strategy offered = strategy;
  if (strategy.mesh.pp == 1 && !offers.has(strategy.schedule, 1)) {
    const char* instead = strategy.schedule == strategy::PipelineSchedule::kZbH1
                              ? "computes each backward whole"
                          : strategy.schedule == strategy::PipelineSchedule::k1F1BPairs
                              ? "hides no exchange behind another micro-batch"
                              : nullptr;
    if (instead != nullptr) offered.schedule = strategy::PipelineSchedule::k1F1B;
    const bool is_asked_for = strategy.schedule == strategy::PipelineSchedule::k1F1BPairs &&
                              job.ruling.flags.contains("--overlap-moe-expert-parallel-comm");
    if (instead != nullptr && !is_asked_for) {
      exported.differs.push_back(fmt::format("schedule {} without a pipeline: {} {}",
                                             strategy::name(strategy.schedule), t.software,
                                             instead));
    }
  }
  append(exported.cannot, job.ruling.forbids);
  if (const auto lacks = not_offered(t.software, offers, offered);
      !lacks.empty() && !runs_by_another_profile(t, offered))
    append(exported.cannot, lacks);
  if (!exported.cannot.empty()) exported.text.clear();
  return exported;
}

}  // namespace piper::exporting
