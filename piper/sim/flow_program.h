// The step lists of all members of a collective in a compact form, each send tied to its receive:
// what simulate_flows() simulates. Members are added one after another, so that nobody holds the
// lists of all of them: 16 bytes a step and 4 for each dependency stay.
#pragma once

#include <piper/collective/steps.h>

#include <cstdint>
#include <span>
#include <vector>

namespace piper::sim {

enum class FlowKind : uint8_t { kSend, kReceive, kLocal };

struct FlowStep {
  // Units of the message, or units of memory that a local step reads and writes.
  uint64_t units : 36;
  uint64_t peer : 24;  // member; messages only
  uint64_t kind : 2;
  // Set on a message whose receive waits for no step and has no step that waits for it.
  uint64_t is_plain : 1;
  uint32_t match = 0;       // of a message: the peer's step, counted over all members
  uint32_t first_next = 0;  // in next(): the steps that wait for this one, up to the next step's
};
static_assert(sizeof(FlowStep) == 16);

inline constexpr int64_t kMaxFlowMembers = int64_t{1} << 24;
inline constexpr int64_t kMaxFlowUnits = (int64_t{1} << 36) - 1;
inline constexpr int64_t kMaxFlowSteps = (int64_t{1} << 32) - 16;

class FlowProgram {
 public:
  // Steps of the next member, from 0 on. Throws InternalError when a step waits for one that is not
  // before it, or exceeds the limits above.
  void add(const collective::MemberSteps& member);
  // After the last member. Throws InternalError naming members when a message has no counterpart,
  // or one of another size: such lists have no meaning.
  void finish();

  int64_t num_members() const { return static_cast<int64_t>(first_step_.size()) - 1; }
  int64_t num_messages() const { return num_messages_; }
  size_t num_steps() const { return num_after_.size(); }
  double num_units() const { return num_units_; }  // of all steps together
  // One more than steps, so that step i's followers end at step i+1's first_next.
  std::span<const FlowStep> steps() const { return steps_; }
  std::span<const uint32_t> num_after() const { return num_after_; }
  std::span<const uint32_t> next() const { return next_; }
  // The steps of member m are first_step()[m] .. first_step()[m+1]-1.
  std::span<const uint32_t> first_step() const { return first_step_; }

 private:
  struct Receive {
    int32_t member;
    uint32_t part;
    uint32_t step;
  };
  void add_dependencies(const collective::MemberSteps& member);
  void match_sends_of(int64_t member, std::span<const Receive> receives,
                      std::vector<uint32_t>& first_of);

  std::vector<FlowStep> steps_;
  std::vector<uint32_t> num_after_;
  std::vector<uint32_t> next_;
  std::vector<uint32_t> first_step_{0};
  std::vector<uint32_t> part_;  // by step; dropped by finish()
  int64_t num_messages_ = 0;
  double num_units_ = 0;
  bool finished_ = false;
};

// All members at once.
FlowProgram flow_program(std::span<const collective::MemberSteps> members);

}  // namespace piper::sim
