#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/units.h>
#include <piper/plan/prediction.h>
#include <piper/plan/search.h>
#include <piper/strategy/rank_layout.h>

#include <algorithm>
#include <numeric>

namespace piper::plan {
namespace {

using strategy::Strategy;

std::string bytes(double count) { return format_bytes(count); }

// The link that a part waits for, of this strategy; "" for what no link decides.
std::string link_of(const Request& r, const Strategy& s, const char* part) {
  const cost::Rates rates = cost::Rates(*r.cluster, r.precision).among(s.mesh.world());
  const std::string name = part;
  using strategy::Axis;
  const strategy::RankLayout layout(s);
  const auto of_axis = [&](Axis axis) {
    return rates.link_of(layout.size(axis), layout.distance(axis));
  };
  if (name == "tensor collectives") return of_axis(Axis::kTensor);
  if (name == "exchange of tokens") return of_axis(Axis::kExpert);
  if (name == "context collectives") return of_axis(Axis::kContext);
  if (name == "gradient reductions") return of_axis(Axis::kData);
  if (name == "messages between stages") {
    size_t level = 0;
    for (int64_t stage = 0; stage + 1 < layout.num_stages(); ++stage)
      level = std::max(level, rates.level_between(layout, stage, stage + 1));
    return r.cluster->levels[level].name;
  }
  return "";
}

// By which factor one part would have to shrink for the family to draw level; nullopt when no part
// is large enough. Compute and update are left out: a faster device would speed up the winner as
// well.
struct Shrink {
  StepPart part;
  double factor = 0;
};
std::optional<Shrink> smallest_shrink(const cost::StepSeconds& t, double excess,
                                      int64_t num_stages) {
  std::optional<Shrink> best;
  for (const StepPart& p : parts_of(t)) {
    const std::string name = p.name;
    if (p.seconds <= excess || name == "compute" || name == "update") continue;
    if (num_stages == 1 && name == "bubble and waiting") continue;  // more micro-batches: no less
    const double factor = p.seconds / (p.seconds - excess);
    if (!best || factor < best->factor) best = Shrink{p, factor};
  }
  return best;
}

std::string shrink_words(const Request& r, const Strategy& s, const Shrink& shrink) {
  const std::string link = link_of(r, s, shrink.part.name);
  if (!link.empty()) return fmt::format("{} links {:.2f} times as fast", link, shrink.factor);
  if (std::string("bubble and waiting") == shrink.part.name)
    return fmt::format("{:.2f} times as many micro-batches (a larger global batch)", shrink.factor);
  if (std::string("recomputation") == shrink.part.name)
    return fmt::format("memory a device for {:.2f} times less recomputation", shrink.factor);
  if (std::string("copies to the host") == shrink.part.name)
    return fmt::format("links to the host {:.2f} times as fast", shrink.factor);
  return fmt::format("{:.2f} times less {}", shrink.factor, shrink.part.name);
}

bool is_pipelined(Family family) {
  return family == Family::kPipeline || family == Family::kPipelineAndTensor;
}

// Why no strategy of a family was tried, and what would change that.
struct NotTried {
  std::string because, change;
};

// The user's own words first, then what the trainer does not run; nothing: it is arithmetic.
std::optional<NotTried> not_tried(const Request& r, Family family) {
  const FixedAxes& f = r.fixed;
  const auto leave_open = [](const char* flag, int64_t value) {
    return NotTried{fmt::format("{} is fixed at {}", flag, value),
                    fmt::format("leave {} open", flag)};
  };
  if (family == Family::kFullySharded && f.zero.value_or(3) != 3)
    return leave_open("--zero", *f.zero);
  if (is_pipelined(family) && f.pp == 1) return leave_open("--pp", 1);
  if ((family == Family::kTensor || family == Family::kPipelineAndTensor) && f.tp == 1)
    return leave_open("--tp", 1);
  if (family == Family::kContext && f.cp == 1) return leave_open("--cp", 1);
  const cost::Offers& offers = r.offers();
  const bool has_pipeline = std::ranges::any_of(
      strategy::kPipelineSchedules,
      [&](strategy::PipelineSchedule schedule) { return offers.has(schedule, 2); });
  const char* lacks = nullptr;
  if (family == Family::kFullySharded && !offers.has_zero(3, 1) && !offers.has_zero(3, 2))
    lacks = "ZeRO 3";
  if (is_pipelined(family) && !has_pipeline) lacks = "a pipeline";
  if (lacks == nullptr) return std::nullopt;
  return NotTried{fmt::format("trainer {} does not run {}", r.trainer->name, lacks),
                  "another --trainer"};
}

FamilyVerdict verdict(const Request& r, const FamilyBest& of, const Candidate* winner) {
  FamilyVerdict v{.family = name(of.family)};
  if (!of.best && !of.smallest) {
    v.best = "-";
    if (const std::optional<NotTried> not_one = not_tried(r, of.family)) {
      v.lost = not_one->because;
      v.revive = not_one->change;
      return v;
    }
    v.lost = "no strategy of this kind divides the devices, layers, heads and batch";
    v.revive = "leave an axis open, or another number of devices";
    return v;
  }
  if (!of.best) {
    const Candidate& c = *of.smallest;
    const double lacking = c.estimate.peak_bytes - r.memory_limit_bytes;
    v.best = describe(c.strategy);
    v.lost =
        fmt::format("does not fit: {} of {} a device ({} states, {} activations)",
                    bytes(c.estimate.peak_bytes), bytes(r.memory_limit_bytes),
                    bytes(c.estimate.fullest.weights_and_gradients + c.estimate.fullest.optimizer),
                    bytes(c.estimate.fullest.activations));
    v.revive = fmt::format("{} more a device", bytes(lacking));
    return v;
  }
  const Candidate& c = *of.best;
  v.best = describe(c.strategy);
  if (winner == nullptr || family_of(winner->strategy) == of.family) {
    v.wins = true;
    v.lost = "wins: " + limits((winner == nullptr ? c : *winner).time());
    v.revive = "-";
    return v;
  }
  // Like is compared with like.
  const bool simulated = c.simulated_seconds > 0 && winner->simulated_seconds > 0;
  const cost::StepSeconds own = simulated ? c.time() : c.estimate.time,
                          least = simulated ? winner->time() : winner->estimate.time;
  const double excess = own.total() - least.total();
  if (excess <= 0) {
    v.lost = "as fast in closed form, too much work to simulate";
    v.revive = "nothing: the two are level";
    return v;
  }
  std::vector<StepPart> more = parts_of(own);
  const std::vector<StepPart> base = parts_of(least);
  for (size_t i = 0; i < more.size(); ++i) more[i].seconds -= base[i].seconds;
  std::ranges::sort(more,
                    [](const StepPart& a, const StepPart& b) { return a.seconds > b.seconds; });
  std::vector<std::string> why;
  for (size_t i = 0; i < 2 && more[i].seconds > 0.01 * least.total(); ++i)
    why.push_back(
        fmt::format("{} +{}", more[i].name, format_percent(more[i].seconds / least.total())));
  v.lost =
      fmt::format("{} slower: {}", format_percent(excess / least.total()),
                  why.empty() ? "a little of everything" : fmt::format("{}", fmt::join(why, ", ")));
  constexpr double kLevel = 0.005;  // of a step: less than any of these figures is known to
  const std::optional<Shrink> shrink = smallest_shrink(own, excess, c.strategy.mesh.pp);
  if (excess < kLevel * least.total())
    v.revive = "nothing: as fast within 0.5 %";
  else
    v.revive = shrink ? shrink_words(r, c.strategy, *shrink)
                      : "no single link, bubble or memory would make up for it";
  return v;
}

// "full", or "by stage 3 full + 5 none".
std::string recompute_words(const Strategy& s) {
  if (s.recompute_per_stage.empty()) return strategy::name(s.recompute);
  std::string text;
  for (size_t i = 0; i < s.recompute_per_stage.size();) {
    size_t end = i;
    while (end < s.recompute_per_stage.size() &&
           s.recompute_per_stage[end] == s.recompute_per_stage[i])
      ++end;
    text += fmt::format("{}{} {}", i > 0 ? " + " : "by stage ", end - i,
                        strategy::name(s.recompute_per_stage[i]));
    i = end;
  }
  return text;
}

// Names the layers of each virtual stage unless the split is the default one: "7 7 7 6", a long
// list "15 x 4, 1 x 1". Else "".
std::string layer_words(const Strategy& s) {
  constexpr int64_t kShort = 8;
  const std::vector<int64_t>& split = s.layers_per_stage;
  const int64_t layers = std::accumulate(split.begin(), split.end(), int64_t{0});
  if (split.size() < 2 || layers < std::ssize(split) ||
      split == strategy::even_split(layers, std::ssize(split)))
    return "";
  if (std::ssize(split) <= kShort) return fmt::format("{}", fmt::join(split, " "));
  std::string words;
  for (auto at = split.begin(); at != split.end();) {
    const auto end = std::find_if(at, split.end(), [&](int64_t n) { return n != *at; });
    words += fmt::format("{}{} x {}", words.empty() ? "" : ", ", end - at, *at);
    at = end;
  }
  return words;
}

}  // namespace

std::vector<std::string> axes_in_words(const Strategy& s) {
  const strategy::Mesh& m = s.mesh;
  std::vector<std::string> words;
  const auto add = [&](bool is_said, std::string word) {
    if (is_said) words.push_back(std::move(word));
  };
  add(true, fmt::format("pp {}", m.pp) + (m.vpp > 1 ? fmt::format(" x {}", m.vpp) : ""));
  add(true, fmt::format("tp {}{}", m.tp, s.sequence_parallel ? "+sp" : ""));
  add(m.cp > 1, fmt::format("cp {}{}", m.cp, strategy::has_ring(s) ? "" : " gather"));
  add(true, fmt::format("ep {}", m.ep) + (m.etp > 1 ? fmt::format(" x etp {}", m.etp) : ""));
  add(true, fmt::format("dp {}", m.dp));
  add(true, fmt::format("{} x {}", s.num_micro_batches, s.micro_batch_sequences));
  add(m.pp > 1 || strategy::splits_backward(s.schedule) || strategy::pairs(s.schedule),
      strategy::name(s.schedule));
  const std::string layers = layer_words(s);
  add(!layers.empty(), "layers " + layers);
  add(true, "recompute " + recompute_words(s));
  add(s.zero > 0, fmt::format("zero {}", s.zero));
  add(s.expert_compression > 1, fmt::format("experts 1/{}", s.expert_compression));
  add(s.capacity.is_limited(),
      fmt::format("capacity {}{}", s.capacity.factor, s.capacity.pads ? " padded" : ""));
  add(s.offload != strategy::Offload::kNone, fmt::format("offload {}", strategy::name(s.offload)));
  add(s.placement != strategy::Placement::kDataInside, strategy::name(s.placement));
  add(s.reduction_start != strategy::ReductionStart::kReady,
      fmt::format("reductions {}", strategy::name(s.reduction_start)));
  add(s.moe_schedule != strategy::MoeSchedule::kPlain,
      strategy::name(s.moe_schedule) +
          (s.moe_chunks > 1 ? fmt::format(" x {}", s.moe_chunks) : ""));
  add(s.all_to_all != strategy::AllToAll::kFlat, "exchange " + to_text(cost::all_to_all_of(s)));
  return words;
}

std::string describe(const Strategy& s) {
  return fmt::format("{}", fmt::join(axes_in_words(s), ", "));
}

std::vector<FamilyVerdict> explain_families(const Request& request, const Plan& plan) {
  std::vector<FamilyVerdict> verdicts;
  const Candidate* winner = plan.ranked.empty() ? nullptr : &plan.ranked.front();
  for (const FamilyBest& family : plan.families)
    verdicts.push_back(verdict(request, family, winner));
  return verdicts;
}

}  // namespace piper::plan
