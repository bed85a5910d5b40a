#include <fmt/format.h>
#include <piper/export/export.h>
#include <piper/export/offers.h>

#include <string_view>

namespace piper::exporting {

Exported export_strategy(Trainer trainer, const model::Model& model,
                         const strategy::Strategy& strategy, const cost::TrainerProfile* priced) {
  const TrainerTraits& t = traits(trainer);
  const cost::TrainerProfile own = cost::load_trainer(t.profile);
  const cost::Offers& offers = own.offers;
  const bool is_of_family = priced != nullptr && priced->name.starts_with(t.family);
  std::vector<std::string> not_hidden;
  const Overlaps overlaps = overlaps_of(is_of_family ? *priced : own, model, strategy, not_hidden);
  Exported exported = t.write(model, strategy, overlaps);
  if (strategy.reduction_start != strategy::ReductionStart::kReady)
    exported.differs.push_back(
        fmt::format("reductions {}: {} sums gradients as soon as they are there",
                    strategy::name(strategy.reduction_start), t.software));
  exported.differs.insert(exported.differs.end(), not_hidden.begin(), not_hidden.end());
  // One stage computes the same in one part or in two, in pairs or one after the other.
  strategy::Strategy offered = strategy;
  if (strategy.mesh.pp == 1 && !offers.has(strategy.schedule, 1)) {
    const char* instead = strategy.schedule == strategy::PipelineSchedule::kZbH1
                              ? "computes each backward whole"
                          : strategy.schedule == strategy::PipelineSchedule::k1F1BPairs
                              ? "hides no exchange behind another micro-batch"
                              : nullptr;
    if (instead != nullptr) offered.schedule = strategy::PipelineSchedule::k1F1B;
    // What overlaps is in Megatron Core's words: others are not asked for it.
    const bool is_asked_for = strategy.schedule == strategy::PipelineSchedule::k1F1BPairs &&
                              overlaps.exchange && t.family == std::string_view("megatron");
    if (instead != nullptr && !is_asked_for) {
      exported.differs.push_back(fmt::format("schedule {} without a pipeline: {} {}",
                                             strategy::name(strategy.schedule), t.software,
                                             instead));
    }
  }
  const std::vector<std::string> lacking = not_offered(t.software, offers, offered);
  exported.cannot.insert(exported.cannot.end(), lacking.begin(), lacking.end());
  if (!exported.cannot.empty()) exported.text.clear();
  return exported;
}

}  // namespace piper::exporting
