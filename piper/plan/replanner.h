// Watches a run: does the strategy that it began with still suit the machine and the load that its
// steps have shown?
//
//   off    nobody looks
//   ask    what would now be faster is said
//   auto   and done: the run saves, goes on with that strategy in place, and watches again
#pragma once

#include <piper/base/traits.h>
#include <piper/plan/replan.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace piper::plan {

enum class Replan : uint8_t { kOff, kAsk, kAuto };
inline constexpr std::array kReplanTraits{NamedValue<Replan>{Replan::kOff, "off"},
                                          NamedValue<Replan>{Replan::kAsk, "ask"},
                                          NamedValue<Replan>{Replan::kAuto, "auto"}};
static_assert(are_in_order(kReplanTraits));
constexpr const auto& rows(Replan) { return kReplanTraits; }

struct ReplanPolicy {
  Replan kind = Replan::kOff;
  // Relative: another strategy's step has to be shorter by more than this part of its own length.
  double bound = 0.1;
  bool is_on() const { return kind != Replan::kOff; }
};

// What a run shows of a step.
struct ObservedStep {
  int64_t number = 0;
  double seconds = 0;
  std::vector<graph::Interval> tasks;  // of all ranks, with one clock
  std::map<int32_t, std::vector<int64_t>> expert_rows;
};

// A strategy that is worth the change.
struct Replanned {
  int64_t step = 0;  // after which it was found
  Proposal proposal;
  ObservedMachine machine;
  std::string why;  // what is not as assumed, in words
  double change_seconds = 0;
  int64_t earned_back = 0;  // steps until the change has paid
};

// Replans one run; one thread feeds it. What it is made from outlives it.
//
// The last kSteps steps are a window: the machine is the median of what they show, the load the
// sum. A strategy is worth the change when
//
//   its step x (1 + bound) < the present one's, as simulated on that machine and as measured
//
// and the steps that are left earn back what the change costs. Both, so that what slows steps down
// without any task being slower (and no model could tell what would be faster) proposes nothing.
// Two windows in a row have to agree that some strategy is worth it: one alone may be noise. The
// planner is asked at first, to confirm, and when a figure of the machine or of the load has left
// by more than the bound what it was when the planner was asked last.
class Replanner {
 public:
  static constexpr int64_t kSteps = 5;
  static constexpr int64_t kWarmUpSteps = 2;  // not looked at

  // `change_seconds`: of saving, ending, resharding and beginning again. `request`: what may be
  // chosen, on the machine as described; `accepts`: as propose().
  Replanner(const Request& request, const schedule::StepGraph& step,
            const strategy::Strategy& present, ReplanPolicy policy, double change_seconds,
            Accepts accepts = {})
      : request_(request),
        step_(step),
        present_(present),
        policy_(policy),
        change_seconds_(change_seconds),
        accepts_(std::move(accepts)) {}

  // After every step, in order. A strategy once when it comes to be worth the change, and again
  // only after another one was. `placements`: where the experts of the present strategy are.
  std::optional<Replanned> note(ObservedStep step, int64_t steps_left,
                                const balance::Placements& placements = {});

 private:
  std::optional<Replanned> decide(int64_t steps_left, const balance::Placements& placements);
  std::string why(const ObservedMachine& machine, double imbalance) const;

  const Request& request_;
  const schedule::StepGraph& step_;
  const strategy::Strategy& present_;
  ReplanPolicy policy_;
  double change_seconds_;
  Accepts accepts_;
  int64_t num_seen_ = 0;
  std::deque<ObservedStep> window_;
  bool agreed_ = false;        // the window before came to a strategy too
  std::vector<double> asked_;  // the figures with which the planner was asked last
  std::string said_;           // the strategy, as JSON
};

// In one line: what would be faster, by how much, why, and what the change costs.
std::string to_text(const Replanned& replanned, const strategy::Strategy& present);

}  // namespace piper::plan
