#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/plan/contradictions.h>
#include <piper/plan/shapes.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <string>

namespace piper::plan {

using strategy::PipelineSchedule;
using strategy::Placement;

namespace {

// Whether a state of the shape, the schedule and the chunks is left: in the order in which the
// search chooses them, since what is refused of one may hang on those before it.
bool leaves_state(const Request& r, strategy::Strategy s) {
  const auto tries_placed = [&] {
    return std::ranges::any_of(strategy::kPlacements,
                               [&](Placement p) { return tries_placement(r, s, p); });
  };
  for (const strategy::Recompute recompute : strategy::kRecomputes) {
    if (!wanted(r.fixed.recompute, recompute) || !r.offers().has(recompute)) continue;
    s.recompute = recompute;
    if (r.forbids(cost::Decided::kLayers, s)) continue;
    for (s.zero = 0; s.zero <= 3; ++s.zero) {
      s.offload = strategy::Offload::kNone;
      if (!tries_zero(r, s, s.zero)) continue;
      for (const strategy::Offload offload : strategy::kOffloads) {
        if (!tries_offload(r, s, offload)) continue;
        s.offload = offload;
        if (tries_placed()) return true;
      }
    }
  }
  return false;
}

}  // namespace

bool leaves_any(const Request& r, const std::vector<Shape>& shapes) {
  return std::ranges::any_of(shapes, [&](const Shape& shape) {
    strategy::Strategy s = with_shape(r, shape);
    s.sequence_parallel = shape.sequence_parallel;
    for (const PipelineSchedule schedule : strategy::kPipelineSchedules) {
      if (!tries_schedule(r, s, schedule)) continue;
      s.schedule = schedule;
      for (s.mesh.vpp = 1; s.mesh.vpp <= kMostChunks; ++s.mesh.vpp)
        if (tries_chunks(r, s, s.mesh.vpp) && leaves_state(r, s)) return true;
      s.mesh.vpp = 1;
    }
    return false;
  });
}

namespace {

struct Count {
  const char* flag;
  std::optional<int64_t> FixedAxes::*value;
  const char* must;  // what it is by itself; "" = only the others decide
};
constexpr std::array kCounts{
    Count{"--tp", &FixedAxes::tp, "divides the devices and the heads"},
    Count{"--cp", &FixedAxes::cp, "divides the devices and the sequence, 512 tokens a part"},
    Count{"--pp", &FixedAxes::pp, "divides the devices, at most the layers"},
    Count{"--dp", &FixedAxes::dp, "divides the devices and the batch"},
    Count{"--ep", &FixedAxes::ep, "divides the devices and the experts"},
    Count{"--etp", &FixedAxes::etp, "divides the devices and an expert's width, at most 8"},
    Count{"--vpp", &FixedAxes::vpp, ""},
    Count{"--micro-batch", &FixedAxes::micro_batch_sequences, "divides the batch, at most 16"},
    Count{"--num-micro-batches", &FixedAxes::num_micro_batches, "divides the batch"}};

class Contradiction {
 public:
  explicit Contradiction(const Request& request) : r_(request) { list(); }

  std::string text() {
    // Whatever can be left out without leaving anything to price is not what contradicts.
    FixedAxes few = r_.fixed;
    std::vector<Axis> set;
    for (const Axis& axis : axes_) {
      FixedAxes without = few;
      axis.free(without);
      if (leaves(without))
        set.push_back(axis);
      else
        few = without;
    }
    std::vector<std::string> named, changes;
    for (const Axis& axis : set) {
      named.push_back(axis.value.empty() ? axis.flag : fmt::format("{} {}", axis.flag, axis.value));
      // With all that is fixed where that is possible, so that one change is enough.
      std::string change = axis.nearest(r_.fixed);
      if (change.empty()) change = axis.nearest(few);
      if (!change.empty()) changes.push_back(fmt::format("{} {}", axis.flag, change));
    }
    const std::string where =
        fmt::format("no strategy {}of {} on {} devices with {} sequences a step",
                    r_.has_exact_costs() ? "that this Piper trains " : "", r_.model->name,
                    r_.num_devices, r_.global_batch_sequences);
    if (set.empty())
      return fmt::format("{} divides{}; change --devices or --global-batch", where,
                         r_.global_batch_sequences / r_.num_devices > strategy::kMaxCount
                             ? fmt::format(" into {} micro-batches or fewer", strategy::kMaxCount)
                             : "");
    if (changes.empty())
      return fmt::format("{} leaves {}; change --devices or --global-batch",
                         fmt::join(named, " with "), where);
    const std::string must = set.size() == 1 ? set.front().must : "";
    return fmt::format("{} leaves {}; {}: {}{}", fmt::join(named, " with "), where,
                       changes.size() > 1 ? "allowed, one of" : "allowed",
                       fmt::join(changes, ", or "), must.empty() ? "" : fmt::format(" ({})", must));
  }

 private:
  struct Axis {
    std::string flag, value;
    std::function<void(FixedAxes&)> free;
    std::function<std::string(const FixedAxes&)> nearest;  // values that leave something
    std::string must;
  };

  bool leaves(const FixedAxes& fixed) const {
    Request asked = r_;
    asked.fixed = fixed;
    return leaves_any(asked, shapes_of(asked));
  }

  std::vector<int64_t> candidates(const Count& count) const {
    const auto upto = [](int64_t from, int64_t to) {
      std::vector<int64_t> all(static_cast<size_t>(to - from + 1));
      std::iota(all.begin(), all.end(), from);
      return all;
    };
    if (count.value == &FixedAxes::ep) return expert_degrees(*r_.model);
    if (count.value == &FixedAxes::etp || count.value == &FixedAxes::vpp)
      return upto(1, kMostChunks);
    if (count.value == &FixedAxes::micro_batch_sequences ||
        count.value == &FixedAxes::num_micro_batches)
      return strategy::divisors(r_.global_batch_sequences);
    return strategy::divisors(r_.num_devices);
  }

  // The nearest below and above.
  std::string nearest(const Count& count, FixedAxes fixed) const {
    const int64_t value = *(r_.fixed.*count.value);
    const std::vector<int64_t> all = candidates(count);
    const auto at = std::ranges::lower_bound(all, value);
    const auto leaves_with = [&](int64_t candidate) {
      fixed.*count.value = candidate;
      return leaves(fixed);
    };
    std::vector<int64_t> found;
    for (auto below = at; below != all.begin() && found.empty();)
      if (leaves_with(*--below)) found.push_back(*below);
    const auto above = std::find_if(at, all.end(), leaves_with);
    if (above != all.end()) found.push_back(*above);
    return fmt::format("{}", fmt::join(found, " or "));
  }

  template <class Values, class Member>
  void list_words(const char* flag, const Values& values, Member member) {
    if (!(r_.fixed.*member)) return;
    axes_.push_back({flag, strategy::name(*(r_.fixed.*member)),
                     [member](FixedAxes& f) { (f.*member).reset(); },
                     [this, values, member](FixedAxes f) {
                       std::vector<std::string> found;
                       for (const auto value : values) {
                         f.*member = value;
                         if (leaves(f)) found.emplace_back(strategy::name(value));
                       }
                       return fmt::format("{}", fmt::join(found, " or "));
                     },
                     ""});
  }

  void list() {
    const auto add = [&](const Count& count) {
      if (const auto& value = r_.fixed.*count.value)
        axes_.push_back({count.flag, std::to_string(*value),
                         [count](FixedAxes& f) { (f.*count.value).reset(); },
                         [this, count](const FixedAxes& f) { return nearest(count, f); },
                         count.must});
    };
    list_words("--schedule", strategy::kPipelineSchedules, &FixedAxes::schedule);
    for (const Count& count : kCounts) add(count);
    if (const auto& zero = r_.fixed.zero)
      axes_.push_back({"--zero", std::to_string(*zero), [](FixedAxes& f) { f.zero.reset(); },
                       [](const FixedAxes&) { return std::string("0"); }, ""});
    list_words("--offload", strategy::kOffloads, &FixedAxes::offload);
    list_words("--placement", strategy::kPlacements, &FixedAxes::placement);
    list_words("--recompute", strategy::kRecomputes, &FixedAxes::recompute);
    list_filter();
  }

  // The paper's space is a part of what is runnable: one filter, under the name that was given.
  void list_filter() {
    if (r_.fixed.offered)
      axes_.push_back({"--trainer", r_.trainer->name, [](FixedAxes& f) { f.offered = false; },
                       [](const FixedAxes&) { return std::string(); }, ""});
    const bool is_paper = r_.fixed.paper_form;
    if (!is_paper && (!r_.fixed.runnable || r_.has_exact_costs())) return;
    axes_.push_back({is_paper ? "--paper" : "--runnable", "",
                     [stays = r_.has_exact_costs()](FixedAxes& f) {
                       f.paper_form = false;
                       f.runnable = stays;
                     },
                     [](const FixedAxes&) { return std::string(); }, ""});
  }

  const Request& r_;
  std::vector<Axis> axes_;
};

std::vector<std::string> below_one(const FixedAxes& fixed) {
  std::vector<std::string> lines;
  for (const Count& count : kCounts)
    if (const auto& value = fixed.*count.value; value && *value < 1)
      lines.push_back(fmt::format("{} is {}; allowed: an integer from 1", count.flag, *value));
  return lines;
}

}  // namespace

void refuse_contradictions(const Request& request, const std::vector<Shape>& shapes) {
  if (leaves_any(request, shapes)) return;
  if (const std::vector<std::string> lines = below_one(request.fixed); !lines.empty())
    throw InvalidInput(lines);
  throw InvalidInput(Contradiction(request).text());
}

}  // namespace piper::plan
