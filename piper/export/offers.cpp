#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/export/offers.h>

#include <algorithm>
#include <initializer_list>

namespace piper::exporting {
namespace {

using cost::Offers;
using strategy::Offload;
using strategy::PipelineSchedule;
using strategy::Recompute;
using strategy::Strategy;

template <class Enum>
std::string list_of(const std::vector<Enum>& offered) {
  std::vector<std::string> names;
  for (const Enum value : offered) names.emplace_back(strategy::name(value));
  return fmt::format("{}", fmt::join(names, ", "));
}

template <class Enum>
bool is_in(const std::vector<Enum>& offered, Enum value) {
  return std::ranges::find(offered, value) != offered.end();
}

// With as few bubbles, as far as that goes.
PipelineSchedule nearest(PipelineSchedule wanted, const std::vector<PipelineSchedule>& offered) {
  const bool splits = strategy::splits_backward(wanted);
  for (const PipelineSchedule schedule : offered)
    if (splits && strategy::splits_backward(schedule)) return schedule;
  if (strategy::pairs(wanted) && is_in(offered, PipelineSchedule::kInterleavedPairs))
    return PipelineSchedule::kInterleavedPairs;
  if ((splits || strategy::interleaves(wanted)) && is_in(offered, PipelineSchedule::kInterleaved))
    return PipelineSchedule::kInterleaved;
  return is_in(offered, PipelineSchedule::k1F1B) ? PipelineSchedule::k1F1B : offered.front();
}

// What divides no less, else what divides most.
int64_t nearest_zero(int64_t wanted, const std::vector<int64_t>& offered) {
  int64_t found = std::ranges::max(offered);
  for (const int64_t stage : offered)
    if (stage >= wanted) found = std::min(found, stage);
  return found;
}

// What leaves the most memory to the rest.
Offload nearest(const std::vector<Offload>& offered) {
  return *std::ranges::max_element(offered, {}, [](Offload o) {
    return strategy::offloads_optimizer(o) + strategy::offloads_activations(o);
  });
}

bool keeps_no_more(Recompute r, Recompute than) {
  return r == than || r == Recompute::kFull ||
         (than != Recompute::kFull &&
          strategy::drops_attention(r) >= strategy::drops_attention(than) &&
          strategy::drops_experts(r) >= strategy::drops_experts(than));
}

// What keeps no more than any of `wanted`: it fits where they fit.
Recompute nearest(const std::vector<Recompute>& wanted, const Offers& offers) {
  for (const Recompute r : strategy::kRecomputes)
    if (offers.has(r) &&
        std::ranges::all_of(wanted, [&](Recompute w) { return keeps_no_more(r, w); }))
      return r;
  return offers.recomputes.back();
}

}  // namespace

std::vector<std::string> not_offered(std::string_view software, const Offers& offers,
                                     const Strategy& s) {
  std::vector<std::string> lines;
  const auto refuse = [&](const std::string& what, const std::string& runs,
                          const std::string& instead) {
    lines.push_back(fmt::format("{}: {} {}; the nearest: --{}", what, software, runs, instead));
  };
  if (!offers.has(s.schedule, s.mesh.pp))
    refuse(fmt::format("schedule {}", strategy::name(s.schedule)),
           "runs " + list_of(offers.schedules),
           fmt::format("schedule {}", strategy::name(nearest(s.schedule, offers.schedules))));
  if (const std::vector<int64_t>& stages = offers.zero_of(s.mesh.pp);
      !offers.has_zero(s.zero, s.mesh.pp))
    refuse(fmt::format("zero {}{}", s.zero, s.mesh.pp > 1 ? " under a pipeline" : ""),
           fmt::format("runs {}", fmt::join(stages, ", ")),
           fmt::format("zero {}", nearest_zero(s.zero, stages)));
  if (!offers.has(s.offload))
    refuse(fmt::format("offload {}", strategy::name(s.offload)), "runs " + list_of(offers.offloads),
           fmt::format("offload {}", strategy::name(nearest(offers.offloads))));
  else if (!offers.has_offload_of(s))
    refuse("offload activations", "copies what checkpointed layers keep", "recompute full");
  if (!offers.has_expert_tensor(s.mesh.etp, s.mesh.tp)) {
    const bool by_tensor = offers.expert_tensor == Offers::ExpertTensor::kOneOrTensor;
    refuse(fmt::format("etp {} beside tp {}", s.mesh.etp, s.mesh.tp),
           by_tensor ? "divides one expert by 1 or by tp" : "divides no expert",
           fmt::format("etp {}", by_tensor ? s.mesh.tp : 1));
  }
  if (s.redundant_experts > 0)
    refuse(fmt::format("redundant-experts {}", s.redundant_experts),
           "holds one copy of each expert", "redundant-experts 0");
  if (s.expert_compression > 1)
    refuse(fmt::format("expert-compression {}", s.expert_compression),
           "sends experts' weights whole", "expert-compression 1");
  if (s.moe_schedule != strategy::MoeSchedule::kPlain)
    refuse(fmt::format("moe-schedule {}", strategy::name(s.moe_schedule)),
           "runs mixture layers of its own order", "moe-schedule plain");
  std::vector<Recompute> recomputes = s.recompute_per_stage;
  if (recomputes.empty()) recomputes.push_back(s.recompute);
  for (const Recompute r : strategy::kRecomputes)
    if (is_in(recomputes, r) && !offers.has(r))
      refuse(fmt::format("recompute {}", strategy::name(r)), "runs " + list_of(offers.recomputes),
             fmt::format("recompute {}", strategy::name(nearest({r}, offers))));
  // Flags name `recompute`: a list by stage that says the same is no other plan.
  if (!offers.recompute_by_stage &&
      !std::ranges::all_of(recomputes, [&](Recompute r) { return r == s.recompute; }))
    refuse("recompute by stage", "has one choice for all stages",
           fmt::format("recompute {}", strategy::name(nearest(recomputes, offers))));
  return lines;
}

}  // namespace piper::exporting
