#include <piper/base/error.h>
#include <piper/sim/flow_program.h>

#include <string>

namespace piper::sim {
namespace {

using collective::MemberSteps;
using collective::Step;
using collective::StepKind;

FlowKind kind_of(const Step& step) {
  if (step.kind == StepKind::kSend) return FlowKind::kSend;
  if (step.kind == StepKind::kReceive) return FlowKind::kReceive;
  return FlowKind::kLocal;
}

// What a step moves: of its message, or of its own memory.
int64_t units_of(const Step& step, const MemberSteps& member) {
  constexpr int kCopyTouches = 2, kAddTouches = 3;  // reads and writes of each unit
  switch (step.kind) {
    case StepKind::kSend:
      return step.source.count;
    case StepKind::kReceive:
      return step.target.count;
    case StepKind::kCopy:
      return kCopyTouches * step.target.count;
    case StepKind::kAdd:
      return kAddTouches * step.target.count;
    case StepKind::kCopyRows:
      return kCopyTouches * step.num_rows * member.row_count;
    case StepKind::kAddRows:
      return kAddTouches * step.num_rows * member.row_count;
  }
  return 0;
}

constexpr uint32_t kUnmatched = UINT32_MAX;

std::string message_name(int64_t from, int64_t to, uint32_t part) {
  return "the message of member " + std::to_string(from) + " to member " + std::to_string(to) +
         ", part " + std::to_string(part);
}

}  // namespace

void FlowProgram::add(const MemberSteps& member) {
  PIPER_CHECK(!finished_ && num_members() < kMaxFlowMembers);
  PIPER_CHECK(std::ssize(member.steps) + std::ssize(steps_) < kMaxFlowSteps);
  for (const Step& step : member.steps) {
    const int64_t units = units_of(step, member);
    const FlowKind kind = kind_of(step);
    const bool is_message = kind != FlowKind::kLocal;
    PIPER_CHECK(units >= 0 && units <= kMaxFlowUnits, std::to_string(units) + " units in a step");
    PIPER_CHECK(!is_message ||
                    (step.peer >= 0 && step.peer < kMaxFlowMembers && step.peer != num_members()),
                "peer " + std::to_string(step.peer));
    num_units_ += static_cast<double>(units);
    steps_.push_back({.units = static_cast<uint64_t>(units),
                      .peer = is_message ? static_cast<uint64_t>(step.peer) : 0,
                      .kind = static_cast<uint64_t>(kind),
                      .is_plain = 0,
                      .match = kUnmatched});
    num_after_.push_back(static_cast<uint32_t>(step.after.size()));
    part_.push_back(step.part);
    num_messages_ += kind == FlowKind::kSend ? 1 : 0;
  }
  add_dependencies(member);
  first_step_.push_back(static_cast<uint32_t>(steps_.size()));
}

void FlowProgram::add_dependencies(const MemberSteps& member) {
  const uint32_t first = first_step_.back();
  std::vector<uint32_t> followers(member.steps.size() + 1);
  for (size_t i = 0; i < member.steps.size(); ++i)
    for (const int32_t before : member.steps[i].after) {
      PIPER_CHECK(before >= 0 && static_cast<size_t>(before) < i,
                  "step " + std::to_string(i) + " waits for step " + std::to_string(before));
      ++followers[static_cast<size_t>(before)];
    }
  uint32_t position = static_cast<uint32_t>(next_.size());
  for (size_t i = 0; i < member.steps.size(); ++i) {
    steps_[first + i].first_next = position;
    position += followers[i];
    followers[i] = steps_[first + i].first_next;  // from here on: where the next one goes
  }
  next_.resize(position);
  for (size_t i = 0; i < member.steps.size(); ++i)
    for (const int32_t before : member.steps[i].after)
      next_[followers[static_cast<size_t>(before)]++] = first + static_cast<uint32_t>(i);
}

// Receives are gathered by sender; those of one sender lie in the order of receivers, so that a
// send finds its own in a short run.
void FlowProgram::finish() {
  PIPER_CHECK(!finished_);
  finished_ = true;
  const auto n = static_cast<size_t>(num_members());
  steps_.push_back({.units = 0, .peer = 0, .kind = 0, .is_plain = 0});
  steps_.back().first_next = static_cast<uint32_t>(next_.size());
  std::vector<uint32_t> first(n + 1);
  const auto is_receive = [&](size_t step) {
    return static_cast<FlowKind>(steps_[step].kind) == FlowKind::kReceive;
  };
  for (size_t s = 0; s < num_steps(); ++s) {
    if (static_cast<FlowKind>(steps_[s].kind) != FlowKind::kLocal)
      PIPER_CHECK(steps_[s].peer < n, "peer " + std::to_string(steps_[s].peer));
    if (is_receive(s)) ++first[steps_[s].peer + 1];
  }
  for (size_t m = 0; m < n; ++m) first[m + 1] += first[m];
  std::vector<Receive> receives(first[n]);
  std::vector<uint32_t> at(first.begin(), first.end() - 1);
  for (size_t m = 0; m < n; ++m)
    for (uint32_t s = first_step_[m]; s < first_step_[m + 1]; ++s)
      if (is_receive(s)) receives[at[steps_[s].peer]++] = {static_cast<int32_t>(m), part_[s], s};
  std::vector<uint32_t> first_of(n);
  for (size_t m = 0; m < n; ++m)
    match_sends_of(static_cast<int64_t>(m),
                   std::span(receives).subspan(first[m], first[m + 1] - first[m]), first_of);
  part_ = {};
}

void FlowProgram::match_sends_of(int64_t member, std::span<const Receive> receives,
                                 std::vector<uint32_t>& first_of) {
  for (size_t i = receives.size(); i-- > 0;)
    first_of[static_cast<size_t>(receives[i].member)] = static_cast<uint32_t>(i);
  size_t num_sends = 0;
  for (uint32_t s = first_step_[member]; s < first_step_[member + 1]; ++s) {
    FlowStep& send = steps_[s];
    if (static_cast<FlowKind>(send.kind) != FlowKind::kSend) continue;
    ++num_sends;
    size_t i = first_of[send.peer];
    const auto here = [&] {
      return i < receives.size() && static_cast<uint64_t>(receives[i].member) == send.peer;
    };
    while (here() && receives[i].part != part_[s]) ++i;
    const auto name = [&] {
      return message_name(member, static_cast<int64_t>(send.peer), part_[s]);
    };
    PIPER_CHECK(here(), name() + ", has no receive");
    FlowStep& receive = steps_[receives[i].step];
    PIPER_CHECK(receive.units == send.units, name() + ", is " + std::to_string(send.units) +
                                                 " units, its receive takes " +
                                                 std::to_string(receive.units));
    PIPER_CHECK(receive.match == kUnmatched, name() + ", is sent twice");
    send.match = receives[i].step;
    receive.match = s;
    send.is_plain = receive.is_plain =
        num_after_[receives[i].step] == 0 &&
        receive.first_next == steps_[receives[i].step + 1].first_next;
  }
  PIPER_CHECK(num_sends == receives.size(),
              "member " + std::to_string(member) + " sends " + std::to_string(num_sends) +
                  " messages, the others wait for " + std::to_string(receives.size()));
}

FlowProgram flow_program(std::span<const MemberSteps> members) {
  FlowProgram program;
  for (const MemberSteps& member : members) program.add(member);
  program.finish();
  return program;
}

}  // namespace piper::sim
