#include <piper/base/error.h>
#include <piper/sim/flow_simulator.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <new>
#include <string>

namespace piper::sim {
namespace {

constexpr double kTicksPerSecond = 1e12;
constexpr double kMostTicks = 4e18;  // of 9.2e18

// Fewer where the links are so slow that ticks could not count the whole: all messages one after
// another through the slowest port of every part of their way.
double ticks_per_second_of(const FlowProgram& program, const Fabric& fabric,
                           const SimulationOptions& options) {
  double byte = 0, message = fabric.costs.send_seconds + fabric.costs.receive_seconds;
  for (size_t p = 0; p < fabric.bytes_per_second.size(); ++p) {
    byte = std::max(byte, 1 / fabric.bytes_per_second[p]);
    message = std::max(message, fabric.message_seconds[p]);
  }
  for (const FabricLevel& level : fabric.levels) message = std::max(message, level.latency_seconds);
  message = std::max(message, fabric.costs.local_seconds);
  if (fabric.costs.local_bytes_per_second > 0)
    byte = std::max(byte, 1 / fabric.costs.local_bytes_per_second);
  const double bytes = program.num_units() * options.bytes_per_unit;
  const double packets =
      static_cast<double>(program.num_steps()) * fabric.costs.packets_across +
      (fabric.costs.packet_bytes > 0 ? bytes / static_cast<double>(fabric.costs.packet_bytes) : 0);
  const double parts = 2 * static_cast<double>(fabric.levels.size()) + 4;
  const double most = parts * (byte * bytes + message * packets);
  double rate = kTicksPerSecond;
  while (most * rate > kMostTicks && rate > 1) rate /= 10;
  return rate;
}

}  // namespace

FlowSimulator::FlowSimulator(const FlowProgram& program, const Fabric& fabric,
                             const SimulationOptions& options)
    : program_(program),
      fabric_(fabric),
      options_(options),
      steps_(program.steps()),
      routes_(fabric),
      costs_(fabric.costs),
      ticks_per_second_(ticks_per_second_of(program, fabric, options)),
      send_ticks_(ticks(costs_.send_seconds)),
      receive_ticks_(ticks(costs_.receive_seconds)),
      local_ticks_(ticks(costs_.local_seconds)),
      watches_arrival_(receive_ticks_ > 0 || costs_.max_in_flight > 0 || options.record_intervals ||
                       costs_.sends_end_at_arrival),
      ports_(fabric.bytes_per_second.size()),
      members_(static_cast<size_t>(program.num_members())),
      processors_(fabric.processor.empty()
                      ? 0
                      : static_cast<size_t>(std::ranges::max(fabric.processor)) + 1),
      // Megabytes for every thousand members: what a flat exchange never looks at costs no memory.
      state_(static_cast<State*>(std::calloc(program.num_steps() + 1, sizeof(State)))) {
  if (!state_) throw std::bad_alloc();
  for (size_t p = 0; p < ports_.size(); ++p) {
    ports_[p].ticks_per_byte = ticks_per_second_ / fabric.bytes_per_second[p];
    ports_[p].ticks_per_message += ticks_per_second_ * fabric.message_seconds[p];
  }
  for (const FabricLevel& level : fabric.levels) latency_.push_back(ticks(level.latency_seconds));
  if (costs_.local_bytes_per_second > 0)
    local_ticks_per_unit_ =
        options.bytes_per_unit * ticks_per_second_ / costs_.local_bytes_per_second;
  if (!program.next().empty())
    pending_.assign(program.num_after().begin(), program.num_after().end());
  if (options.record_intervals) intervals_.resize(program.num_steps());
}

SimulatedFlows FlowSimulator::run() {
  begin();
  simulate_events();
  if (num_done_ != static_cast<int64_t>(program_.num_steps())) fail_in_circle();
  return result();
}

void FlowSimulator::begin() {
  const std::span<const uint32_t> first = program_.first_step();
  for (size_t m = 0; m < members_.size(); ++m) {
    members_[m].first_early = first[m];
    members_[m].end_early = first[m + 1];
    for (uint32_t s = first[m]; s < first[m + 1]; ++s)
      if (kind(s) != FlowKind::kSend && program_.num_after()[s] == 0 &&
          !(kind(s) == FlowKind::kReceive && is_plain(s)))
        post(s, m, 0);
  }
  // After what takes no time.
  for (size_t m = 0; m < members_.size(); ++m) push_special(0, kBegin, kNone, m);
}

SimulatedFlows FlowSimulator::result() const {
  SimulatedFlows simulated;
  simulated.num_messages = program_.num_messages();
  simulated.num_events = num_events_;
  for (const Member& member : members_) {
    simulated.member_seconds.push_back(seconds_of(member.end));
    simulated.startup_seconds.push_back(seconds_of(member.num_started * send_ticks_));
    simulated.seconds = std::max(simulated.seconds, simulated.member_seconds.back());
  }
  for (const Port& port : ports_) simulated.port_bytes.push_back(static_cast<double>(port.bytes));
  for (const auto& [begin, end] : intervals_)
    simulated.intervals.push_back({seconds_of(begin), seconds_of(end)});
  return simulated;
}

void FlowSimulator::post(uint32_t step, uint64_t member, int64_t now) {
  switch (kind(step)) {
    case FlowKind::kReceive:
      post_receive(step, member, now);
      return;
    case FlowKind::kLocal:
      post_local(step, member, now);
      return;
    case FlowKind::kSend:
      break;
  }
  Member& m = members_[member];
  m.late.push_back(step);
  std::ranges::push_heap(m.late, std::greater<>());
  start_next(member, now);
}

void FlowSimulator::post_receive(uint32_t step, uint64_t member, int64_t now) {
  State& state = state_[step];
  if (options_.record_intervals) intervals_[step].first = now;
  if (state.phase == Phase::kThere) {
    state.phase = Phase::kDone;
    end_at(step, member, std::max(now, state.time));
    return;
  }
  const int64_t issued = state.time;
  const bool sender_waits = state.phase == Phase::kSenderWaits;
  state.phase = Phase::kPosted;
  state.time = now;
  if (sender_waits) begin_transfer(steps_[step].match, steps_[step].peer, issued, now, now);
}

void FlowSimulator::post_local(uint32_t step, uint64_t member, int64_t now) {
  Member& m = members_[member];
  const bool is_meeting = steps_[step].units == 0;
  const bool was_busy = m.memory_free > now;
  const int64_t begin = is_meeting ? now : std::max(now, m.memory_free);
  if (!is_meeting)
    m.memory_free = begin + (was_busy ? 0 : local_ticks_) +
                    std::llround(static_cast<double>(steps_[step].units) * local_ticks_per_unit_);
  if (options_.record_intervals) intervals_[step].first = begin;
  end_at(step, member, is_meeting ? now : m.memory_free);
}

void FlowSimulator::finished(uint32_t step, uint64_t member, int64_t now) {
  for (uint32_t i = steps_[step].first_next; i < steps_[step + 1].first_next; ++i) {
    const uint32_t follower = program_.next()[i];
    if (--pending_[follower] == 0) post(follower, member, now);
  }
}

// Names a message that both sides could not agree on; else a step that waits for others.
void FlowSimulator::fail_in_circle() const {
  const std::span<const uint32_t> first = program_.first_step();
  std::string found;
  for (size_t m = 0; m < members_.size(); ++m)
    for (uint32_t s = first[m]; s < first[m + 1]; ++s) {
      const bool waits = !pending_.empty() && pending_[s] > 0;
      const bool unmet = kind(s) == FlowKind::kReceive && state_[s].phase == Phase::kPosted;
      if (!waits && !unmet) continue;
      const std::string line =
          "step " + std::to_string(s - first[m]) + " of member " + std::to_string(m) +
          (unmet ? " waits for a message of member " + std::to_string(steps_[s].peer)
                 : " waits for steps before it");
      PIPER_CHECK(!unmet, "members wait in a circle: " + line);
      if (found.empty()) found = line;
    }
  PIPER_CHECK(false, "members wait in a circle: " + found);
  std::abort();
}

SimulatedFlows simulate_flows(const FlowProgram& program, const Fabric& fabric,
                              const SimulationOptions& options) {
  std::vector<std::string> problems = problems_of(fabric);
  if (fabric.num_members() != program.num_members())
    problems.push_back("the fabric has " + std::to_string(fabric.num_members()) +
                       " members, the steps are those of " + std::to_string(program.num_members()));
  if (!problems.empty()) throw InvalidInput(problems);
  return FlowSimulator(program, fabric, options).run();
}

}  // namespace piper::sim
