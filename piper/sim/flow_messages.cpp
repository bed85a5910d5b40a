// Messages under way: what runs once a message and port.
#include <piper/sim/flow_simulator.h>

#include <algorithm>
#include <functional>

namespace piper::sim {
namespace {

// A port's turn of a message: when its head leaves; `tail` becomes when its tail does.
template <class Port>
int64_t cross(Port& port, int64_t head, int64_t& tail, uint64_t bytes) {
  const int64_t begin = std::max(head, port.free);
  // Positive, and far below 2^53.
  const double ticks = static_cast<double>(static_cast<int64_t>(bytes)) * port.ticks_per_byte;
  port.free = begin + static_cast<int64_t>(ticks + port.ticks_per_message);
  port.bytes += static_cast<int64_t>(bytes);
  tail = std::max(tail, port.free);
  return begin;
}

}  // namespace

void FlowSimulator::simulate_events() {
  while (!wheel_.empty()) {
    ++num_events_;
    const Event& event = wheel_.pop();
    const int64_t time = event.time;
    int64_t tail = event.tail;
    const uint64_t message = event.message, where = event.where;
    const auto position = static_cast<uint32_t>(where >> 32);
    const auto step = static_cast<uint32_t>(where);
    if (position >= kStartedUp) {
      handle_special(static_cast<Special>(position), step, message, time, tail);
      continue;
    }
    const uint64_t to = event.to();
    Port& port = ports_[static_cast<size_t>(routes_.port(position, to))];
    const int64_t begin = cross(port, time, tail, message >> Event::kMemberBits);
    const uint32_t next = routes_.next(position, to);
    if (next != FlowRoutes::kEnd) {
      wheel_.push({begin, tail, message, Event::where_of(next, step)});
    } else if (costs_.packets_on_ports > 0) {
      packet_came(step, to, message >> Event::kMemberBits, tail);
    } else if (step == kNone) {
      ++num_done_;
      Member& m = members_[to];
      m.end = std::max(m.end, tail);
    } else if (step != kPart) {
      arrive(step, to, tail);
    }
  }
}

void FlowSimulator::handle_special(Special what, uint32_t step, uint64_t member, int64_t now,
                                   int64_t line) {
  switch (what) {
    case kStartedUp:
      members_[member].is_starting = false;
      issue(step, member, now);
      start_next(member, now);
      return;
    case kBegin:
      start_next(member, now);
      return;
    case kDepart:
      depart(step, member, now);
      return;
    case kNextPacket:
      next_packet(static_cast<uint64_t>(line), member, now);
      return;
    case kCredit:
      credit(static_cast<uint64_t>(line), member, now);
      return;
    case kArrived:
      arrived(step, member, now);
      return;
    case kFinished:
      finished(step, member, now);
      return;
  }
}

// The order of the list is the order of preference.
uint32_t FlowSimulator::take_waiting(Member& member) {
  const auto may_start = [this](uint32_t step) {
    return kind(step) == FlowKind::kSend && program_.num_after()[step] == 0;
  };
  while (member.first_early < member.end_early && !may_start(member.first_early))
    ++member.first_early;
  const bool has_early = member.first_early < member.end_early;
  if (member.late.empty() || (has_early && member.first_early < member.late.front()))
    return has_early ? member.first_early++ : kNone;
  std::ranges::pop_heap(member.late, std::greater<>());
  const uint32_t step = member.late.back();
  member.late.pop_back();
  return step;
}

void FlowSimulator::start_next(uint64_t member, int64_t now) {
  if (processors_.empty()) {
    start_one(member, now);
    return;
  }
  Processor& processor = processors_[static_cast<size_t>(fabric_.processor[member])];
  if (processor.holder != Processor::kNobody && processor.holder != member) {
    if (!std::exchange(members_[member].waits_for_processor, true))
      processor.waiting.push_back(member);
    return;
  }
  while (!start_one(member, now)) {
    processor.holder = Processor::kNobody;
    if (processor.first_waiting == processor.waiting.size()) return;
    member = processor.waiting[processor.first_waiting++];
    members_[member].waits_for_processor = false;
  }
  processor.holder = member;
}

// Also without start-up costs one message at a time: members that begin at once take turns. False:
// there is nothing to start.
bool FlowSimulator::start_one(uint64_t member, int64_t now) {
  Member& m = members_[member];
  if (m.is_starting) return true;
  if (costs_.max_in_flight > 0 && m.in_flight == costs_.max_in_flight) return false;
  const uint32_t send = take_waiting(m);
  if (send == kNone) return false;
  ++m.in_flight;
  ++m.num_started;
  m.is_starting = true;
  int64_t& free = processor_free(member);
  free = std::max(now, free) + send_ticks_;
  push_special(free, kStartedUp, send, member);
  return true;
}

void FlowSimulator::issue(uint32_t send, uint64_t member, int64_t now) {
  const FlowStep& step = steps_[send];
  if (is_eager(send)) {
    depart(send, member, now);
    if (costs_.eager_is_copied) end_at(send, member, now);
    return;
  }
  if (is_plain(send)) {
    begin_transfer(send, member, now, 0, now);
    return;
  }
  State& receive = state_[step.match];
  if (receive.phase == Phase::kPosted) {
    begin_transfer(send, member, now, receive.time, now);
    return;
  }
  receive.phase = Phase::kSenderWaits;
  receive.time = now;
}

// Both sides of a rendezvous are known.
void FlowSimulator::begin_transfer(uint32_t send, uint64_t from, int64_t issued, int64_t posted,
                                   int64_t now) {
  const int64_t latency = latency_[routes_.common_level(from, steps_[send].peer)];
  int64_t begin = 0;
  switch (costs_.rendezvous) {
    case Rendezvous::kReady:
      begin = std::max(issued, posted);
      break;
    case Rendezvous::kGrant:
      begin = std::max(issued, posted + latency);
      break;
    case Rendezvous::kOffer:
      begin = std::max(issued + latency, posted) + latency;
      break;
  }
  if (begin <= now)
    depart(send, from, now);
  else
    push_special(begin, kDepart, send, from);
}

// Bytes of a packet of a message of `bytes`; 0: it goes whole.
uint64_t FlowSimulator::packet_of(uint64_t bytes, uint32_t first, uint64_t to) const {
  auto packet = static_cast<uint64_t>(costs_.packet_bytes);
  if (costs_.packets_across == 1) return packet;
  const bool is_across = routes_.next(routes_.next(first, to), to) != FlowRoutes::kEnd;
  if (!is_across) return packet;
  const auto num_packets = static_cast<uint64_t>(costs_.packets_across);
  const uint64_t part = (bytes + num_packets - 1) / num_packets;
  return packet == 0 ? part : std::min(packet, part);
}

void FlowSimulator::depart(uint32_t send, uint64_t from, int64_t now) {
  if (costs_.turns == Turns::kByPeer) {
    join_line(send, from, now);
    return;
  }
  const FlowStep step = steps_[send];
  const uint64_t to = step.peer;
  const size_t level = routes_.common_level(from, to);
  const uint32_t first = routes_.first(from, level);
  const Port& port = ports_[static_cast<size_t>(routes_.port(first, to))];
  if (options_.record_intervals) intervals_[send].first = std::max(now, port.free);
  uint64_t left = bytes_of(send);
  if (const uint64_t packet = packet_of(left, first, to); packet > 0)
    for (; left > packet; left -= packet)
      depart_packet(first, to, packet, kPart, now, latency_[level]);
  depart_packet(first, to, left, is_plain(send) ? kNone : step.match, now, latency_[level]);
  if (!is_copied(send) && !costs_.sends_end_at_arrival) end_at(send, from, port.free);
}

void FlowSimulator::join_line(uint32_t send, uint64_t from, int64_t now) {
  const uint64_t pair = from << Event::kMemberBits | steps_[send].peer;
  const uint64_t index = line_of_.try_emplace(pair, lines_.size()).first->second;
  if (index == lines_.size()) lines_.emplace_back();
  Line& line = lines_[index];
  state_[send].time = kNone;
  const bool is_alone = line.first == kNone;
  if (is_alone) line.first = send;
  if (!is_alone || line.coming != kNone) state_[line.last].time = send;
  line.last = send;
  if (costs_.packets_on_ports > 0 && line.coming == kNone) {
    line.coming = send;
    line.left_to_come = bytes_of(send);
  }
  if (!is_alone) return;
  line.left = bytes_of(send);
  next_packet(index, from, now);
}

// One packet of the line's first message goes to the end of the port's queue; the next one when
// this has left, so that every line has one packet there.
void FlowSimulator::next_packet(uint64_t index, uint64_t from, int64_t now) {
  Line& line = lines_[index];
  if (line.is_leaving) {
    line.is_leaving = false;
    line.first = static_cast<uint32_t>(state_[line.first].time);
    if (line.first == kNone) return;
    line.left = bytes_of(line.first);
  }
  if (costs_.packets_on_ports > 0) {
    line.is_held = line.on_ports == costs_.packets_on_ports;
    if (line.is_held) return;
    ++line.on_ports;
  }
  const uint32_t send = line.first;
  const FlowStep step = steps_[send];
  const uint64_t to = step.peer;
  const size_t level = routes_.common_level(from, to);
  const uint32_t first = routes_.first(from, level);
  const Port& port = ports_[static_cast<size_t>(routes_.port(first, to))];
  const uint64_t whole = bytes_of(send), packet = packet_of(whole, first, to);
  if (options_.record_intervals && line.left == whole)
    intervals_[send].first = std::max(now, port.free);
  line.is_leaving = packet == 0 || line.left <= packet;
  const uint64_t bytes = line.is_leaving ? line.left : packet;
  const uint32_t receive = !line.is_leaving ? kPart : is_plain(send) ? kNone : step.match;
  if (costs_.packets_on_ports > 0)
    depart_packet(first, to, bytes, static_cast<uint32_t>(index), now, 0);
  else
    depart_packet(first, to, bytes, receive, now, latency_[level]);
  line.left -= bytes;
  if (line.is_leaving && !is_copied(send) && !costs_.sends_end_at_arrival)
    end_at(send, from, port.free);
  wheel_.push({port.free, static_cast<int64_t>(index), from, Event::where_of(kNextPacket, send)});
}

void FlowSimulator::depart_packet(uint32_t first, uint64_t to, uint64_t bytes, uint32_t step,
                                  int64_t now, int64_t latency) {
  int64_t tail = 0;
  Port& port = ports_[static_cast<size_t>(routes_.port(first, to))];
  const int64_t begin = cross(port, now, tail, bytes);
  wheel_.push({begin + latency, tail + latency, Event::message_of(bytes, to),
               Event::where_of(routes_.next(first, to), step)});
}

// A packet of the line will have left the last port at `tail`.
void FlowSimulator::packet_came(uint64_t index, uint64_t to, uint64_t bytes, int64_t tail) {
  Line& line = lines_[index];
  const uint32_t send = line.coming;
  const uint32_t receive = steps_[send].match;
  const uint64_t from = steps_[receive].peer;
  wheel_.push({tail, static_cast<int64_t>(index), from, Event::where_of(kCredit, send)});
  line.left_to_come -= bytes;
  if (line.left_to_come > 0) return;
  line.coming = static_cast<uint32_t>(state_[send].time);
  if (line.coming != kNone) line.left_to_come = bytes_of(line.coming);
  const int64_t there = tail + latency_[routes_.common_level(from, to)];
  if (!is_plain(send)) {
    arrive(receive, to, there);
    return;
  }
  ++num_done_;
  members_[to].end = std::max(members_[to].end, there);
}

void FlowSimulator::credit(uint64_t index, uint64_t from, int64_t now) {
  Line& line = lines_[index];
  --line.on_ports;
  if (line.is_held) next_packet(index, from, now);
}

// The tail of a message will be there at `tail`.
void FlowSimulator::arrive(uint32_t receive, uint64_t member, int64_t tail) {
  if (receive_ticks_ > 0 || costs_.max_in_flight > 0)
    push_special(tail, kArrived, receive, member);
  else
    arrived(receive, member, tail);
}

// `now` may lie ahead when nothing but the receive's end depends on it.
void FlowSimulator::arrived(uint32_t receive, uint64_t member, int64_t now) {
  if (costs_.max_in_flight > 0) {
    const uint64_t from = steps_[receive].peer;
    --members_[from].in_flight;
    start_next(from, now);
  }
  const uint32_t send = steps_[receive].match;
  if (costs_.sends_end_at_arrival && !is_copied(send)) end_at(send, steps_[receive].peer, now);
  int64_t done = now;
  if (receive_ticks_ > 0) {
    int64_t& free = processor_free(member);
    free = std::max(now, free) + receive_ticks_;
    done = free;
  }
  State& state = state_[receive];
  if (state.phase == Phase::kPosted) {
    state.phase = Phase::kDone;
    end_at(receive, member, done);
  } else {
    state.phase = Phase::kThere;
    state.time = done;
  }
}

// The step ends at `time`, now or later.
void FlowSimulator::end_at(uint32_t step, uint64_t member, int64_t time) {
  ++num_done_;
  if (options_.record_intervals) intervals_[step].second = time;
  Member& m = members_[member];
  m.end = std::max(m.end, time);
  if (has_next(step)) push_special(time, kFinished, step, member);
}

}  // namespace piper::sim
