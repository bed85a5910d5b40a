#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/plan/setting.h>
#include <piper/plan/whole_contradictions.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <string>

namespace piper::plan {
namespace {

using strategy::PipelineSchedule;
using strategy::Placement;

struct Count {
  const char* flag;
  std::optional<int64_t> WholeFixed::*value;
  const char* must;  // what it is by itself; "" = only the others decide
};
constexpr std::array kCounts{
    Count{"--tp", &WholeFixed::tp, "divides the devices and the heads"},
    Count{"--cp", &WholeFixed::cp, "divides the devices and the sequence, 512 tokens a part"},
    Count{"--pp", &WholeFixed::pp, "divides the devices, at most the layers"},
    Count{"--dp", &WholeFixed::dp, "divides the devices and the batch"},
    Count{"--ep", &WholeFixed::ep, "divides the devices and the experts"},
    Count{"--etp", &WholeFixed::etp, "divides the devices and an expert's width, at most 8"},
    Count{"--vpp", &WholeFixed::vpp, ""},
    Count{"--micro-batch", &WholeFixed::micro_batch_sequences, "divides the batch, at most 16"},
    Count{"--num-micro-batches", &WholeFixed::num_micro_batches, "divides the batch"}};

bool leaves_any(const WholeRequest& r, const std::vector<WholeShape>& shapes) {
  return std::ranges::any_of(shapes, [&](const WholeShape& shape) {
    strategy::Strategy s = with_shape(r, shape);
    bool zero = false;
    for (int64_t z = 0; z <= 3; ++z) zero = zero || tries_zero(r, s, z);
    const bool placed = std::ranges::any_of(strategy::kPlacements,
                                            [&](Placement p) { return tries_placement(r, s, p); });
    const bool offloaded = std::ranges::any_of(
        strategy::kOffloads, [&](strategy::Offload o) { return tries_offload(r, s, o); });
    if (!zero || !placed || !offloaded) return false;
    for (const PipelineSchedule schedule : strategy::kPipelineSchedules) {
      if (!tries_schedule(r, s, schedule)) continue;
      s.schedule = schedule;
      for (int64_t vpp = 1; vpp <= kMostChunks; ++vpp)
        if (tries_chunks(r, s, vpp)) return true;
    }
    return false;
  });
}

class Contradiction {
 public:
  explicit Contradiction(const WholeRequest& request) : r_(request) { list(); }

  std::string text() {
    // Whatever can be left out without leaving anything to price is not what contradicts.
    WholeFixed few = r_.fixed;
    std::vector<Axis> set;
    for (const Axis& axis : axes_) {
      WholeFixed without = few;
      axis.free(without);
      if (leaves(without))
        set.push_back(axis);
      else
        few = without;
    }
    std::vector<std::string> named, changes;
    for (const Axis& axis : set) {
      named.push_back(fmt::format("{} {}", axis.flag, axis.value));
      // With all that is fixed where that is possible, so that one change is enough.
      std::string change = axis.nearest(r_.fixed);
      if (change.empty()) change = axis.nearest(few);
      if (!change.empty()) changes.push_back(fmt::format("{} {}", axis.flag, change));
    }
    const std::string where =
        fmt::format("no strategy of {} on {} devices with {} sequences a step", r_.model->name,
                    r_.num_devices, r_.global_batch_sequences);
    if (set.empty()) return where + " divides; change --devices or --global-batch";
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
    std::function<void(WholeFixed&)> free;
    std::function<std::string(const WholeFixed&)> nearest;  // values that leave something
    std::string must;
  };

  bool leaves(const WholeFixed& fixed) const {
    WholeRequest asked = r_;
    asked.fixed = fixed;
    return leaves_any(asked, whole_shapes(asked));
  }

  std::vector<int64_t> candidates(const Count& count) const {
    const auto upto = [](int64_t from, int64_t to) {
      std::vector<int64_t> all(static_cast<size_t>(to - from + 1));
      std::iota(all.begin(), all.end(), from);
      return all;
    };
    if (count.value == &WholeFixed::ep) return expert_degrees(*r_.model);
    if (count.value == &WholeFixed::etp || count.value == &WholeFixed::vpp)
      return upto(1, kMostChunks);
    if (count.value == &WholeFixed::micro_batch_sequences ||
        count.value == &WholeFixed::num_micro_batches)
      return divisors(r_.global_batch_sequences);
    return divisors(r_.num_devices);
  }

  // The nearest below and above.
  std::string nearest(const Count& count, WholeFixed fixed) const {
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
                     [member](WholeFixed& f) { (f.*member).reset(); },
                     [this, values, member](WholeFixed f) {
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
                         [count](WholeFixed& f) { (f.*count.value).reset(); },
                         [this, count](const WholeFixed& f) { return nearest(count, f); },
                         count.must});
    };
    list_words("--schedule", strategy::kPipelineSchedules, &WholeFixed::schedule);
    for (const Count& count : kCounts) add(count);
    if (const auto& zero = r_.fixed.zero)
      axes_.push_back({"--zero", std::to_string(*zero), [](WholeFixed& f) { f.zero.reset(); },
                       [](const WholeFixed&) { return std::string("0"); }, ""});
    list_words("--offload", strategy::kOffloads, &WholeFixed::offload);
    list_words("--placement", strategy::kPlacements, &WholeFixed::placement);
  }

  const WholeRequest& r_;
  std::vector<Axis> axes_;
};

std::vector<std::string> below_one(const WholeFixed& fixed) {
  std::vector<std::string> lines;
  for (const Count& count : kCounts)
    if (const auto& value = fixed.*count.value; value && *value < 1)
      lines.push_back(fmt::format("{} is {}; allowed: an integer from 1", count.flag, *value));
  return lines;
}

}  // namespace

void refuse_contradictions(const WholeRequest& request, const std::vector<WholeShape>& shapes) {
  if (leaves_any(request, shapes)) return;
  if (const std::vector<std::string> lines = below_one(request.fixed); !lines.empty())
    throw InvalidInput(lines);
  throw InvalidInput(Contradiction(request).text());
}

}  // namespace piper::plan
