#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/units.h>
#include <piper/plan/moe_schedule_axis.h>
#include <piper/plan/simulated_step.h>
#include <piper/strategy/runnable.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

namespace piper::plan {
namespace {

using strategy::MoeSchedule;
using strategy::Strategy;

Strategy with(const Strategy& s, MoeSchedule schedule, int64_t chunks) {
  Strategy other = s;
  other.moe_schedule = schedule;
  other.moe_chunks = chunks;
  return other;
}

// Parm's S2 is the tasks of MoNTA's O1 and O2 under another name where no ranks share an expert.
// Its baseline sends etp times the rows of the plain layer: it is there to be compared with. The
// order that a strategy has already is always an option.
bool is_of_its_own(MoeSchedule schedule, const Strategy& s) {
  return schedule == s.moe_schedule ||
         (!traits(schedule).gathers_tokens && (schedule != MoeSchedule::kParmS2 || s.mesh.etp > 1));
}

class Options {
 public:
  Options(cost::Estimator& estimator, const FixedAxes& fixed, const Strategy& s, double imbalance)
      : estimator_(estimator), fixed_(fixed), s_(s), imbalance_(imbalance) {
    // Whatever the split will be: what a mixture layer may do does not hang on it.
    if (s_.layers_per_stage.empty())
      s_.layers_per_stage =
          strategy::even_split(estimator.model().num_layers(), s_.mesh.num_virtual_stages());
  }

  std::vector<MoeScheduleOption> take() {
    for (const MoeSchedule schedule : strategy::kMoeSchedules) {
      if (!strategy::runs(schedule)) continue;
      if (fixed_.moe_schedule ? *fixed_.moe_schedule != schedule : !is_of_its_own(schedule, s_))
        continue;
      if (!strategy::has_chunks(schedule))
        add(schedule, 1);
      else if (fixed_.moe_chunks)
        add(schedule, *fixed_.moe_chunks);
      else
        add_chunked(schedule);
    }
    return std::move(found_);
  }

 private:
  // Seconds; nullopt where the mesh does not allow it.
  std::optional<double> add(MoeSchedule schedule, int64_t chunks) {
    if (fixed_.moe_chunks && *fixed_.moe_chunks != chunks) return std::nullopt;
    const Strategy s = with(s_, schedule, chunks);
    if (!strategy::contradictions(s, estimator_.model()).empty() || lacks_more(s))
      return std::nullopt;
    const double seconds = seconds_through_layers(estimator_, s, imbalance_);
    found_.push_back({schedule, chunks, seconds});
    return seconds;
  }

  // Whether something is against running it that is not against the plain layer.
  bool lacks_more(const Strategy& s) {
    if (!num_lacking_)
      num_lacking_ = std::ssize(strategy::not_runnable(with(s_, MoeSchedule::kPlain, 1)));
    return std::ssize(strategy::not_runnable(s)) > *num_lacking_;
  }

  void add_chunked(MoeSchedule schedule) {
    std::optional<double> before;
    const int64_t most =
        traits(schedule).groups_peers ? s_.mesh.ep : std::numeric_limits<int64_t>::max();
    for (int64_t chunks = schedule == MoeSchedule::kParmS2 ? 1 : 2;
         chunks <= std::min(most, strategy::kMaxMoeChunks);
         chunks = chunks < most && chunks > most / 2 ? most : chunks * 2) {
      const std::optional<double> seconds = add(schedule, chunks);
      if (!seconds || (before && *seconds >= *before)) return;
      before = seconds;
    }
  }

  cost::Estimator& estimator_;
  const FixedAxes& fixed_;
  Strategy s_;
  double imbalance_;
  std::optional<int64_t> num_lacking_;
  std::vector<MoeScheduleOption> found_;
};

bool is_open(const cost::Estimator& estimator, const Strategy& s) {
  return estimator.model().num_moe_layers() > 0 &&
         (s.mesh.ranks_per_expert_set() > 1 || s.mesh.tp > 1);
}

std::string words(const MoeScheduleOption& option) {
  return strategy::name(option.schedule) +
         (strategy::has_chunks(option.schedule) ? fmt::format(" ({} chunks)", option.chunks) : "");
}

}  // namespace

std::vector<MoeScheduleOption> moe_schedule_options(cost::Estimator& estimator,
                                                    const FixedAxes& fixed, const Strategy& s,
                                                    double imbalance) {
  return Options(estimator, fixed, s, imbalance).take();
}

double seconds_through_layers(cost::Estimator& estimator, const Strategy& s, double imbalance) {
  const cost::PassSeconds pass = estimator.pass_seconds(s, imbalance);
  return std::accumulate(pass.layers.begin(), pass.layers.end(), pass.embedding + pass.head);
}

bool choose_moe_schedule(cost::Estimator& estimator, const FixedAxes& fixed, Strategy& s,
                         double imbalance) {
  if (!fixed.moe_schedule && !fixed.moe_chunks && !is_open(estimator, s)) return true;
  const std::vector<MoeScheduleOption> options =
      moe_schedule_options(estimator, fixed, s, imbalance);
  if (options.empty()) return !fixed.moe_schedule && !fixed.moe_chunks;
  const MoeScheduleOption* best = &options.front();
  for (const MoeScheduleOption& option : options)
    if (option.seconds < best->seconds * (1 - kMoeScheduleTie)) best = &option;
  s.moe_schedule = best->schedule;
  s.moe_chunks = best->chunks;
  return true;
}

Strategy simulated_moe_schedule(cost::Estimator& estimator, const FixedAxes& fixed,
                                const Strategy& strategy, double imbalance,
                                const std::function<bool(const Strategy&)>& fits) {
  if (!is_open(estimator, strategy) || !may_simulate(estimator, strategy)) return strategy;
  const std::vector<MoeScheduleOption> options =
      moe_schedule_options(estimator, fixed, strategy, imbalance);
  const auto is_own = [&](const MoeScheduleOption& option) {
    return option.schedule == strategy.moe_schedule && option.chunks == strategy.moe_chunks;
  };
  const auto own = std::ranges::find_if(options, is_own);
  if (own == options.end()) return strategy;
  Strategy best = strategy;
  double fastest = simulated_seconds(estimator, strategy, imbalance) * (1 - kMoeScheduleTie);
  for (const MoeScheduleOption& option : options) {
    if (is_own(option) || option.seconds > own->seconds * kMoeScheduleNear) continue;
    const Strategy other = with(strategy, option.schedule, option.chunks);
    if (!may_simulate(estimator, other)) continue;
    const double seconds = simulated_seconds(estimator, other, imbalance);
    if (seconds >= fastest || (fits && !fits(other))) continue;
    fastest = seconds;
    best = other;
  }
  return best;
}

std::string explain_moe_schedule(cost::Estimator& estimator, const FixedAxes& fixed,
                                 const Strategy& s, double imbalance) {
  if (!is_open(estimator, s)) return "";
  FixedAxes all = fixed;
  all.moe_schedule = std::nullopt;
  all.moe_chunks = std::nullopt;
  std::string own;
  std::vector<std::string> others;
  std::vector<MoeScheduleOption> options = moe_schedule_options(estimator, all, s, imbalance);
  std::ranges::stable_sort(options, {}, &MoeScheduleOption::seconds);
  for (const MoeScheduleOption& option : options) {
    const std::string text =
        fmt::format("{} with {}", format_seconds(option.seconds), words(option));
    if (option.schedule == s.moe_schedule && option.chunks == s.moe_chunks)
      own = text;
    else
      others.push_back(text);
  }
  if (own.empty() || others.empty()) return "";
  constexpr size_t kMost = 4;
  if (others.size() > kMost) others.resize(kMost);
  return fmt::format("a micro-batch takes {} through all layers; {}", own, fmt::join(others, ", "));
}

}  // namespace piper::plan
