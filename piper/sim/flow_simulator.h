// The state of simulate_flows() while it simulates, and its parts: steps (simulate_flows.cpp) and
// messages under way (flow_messages.cpp). For nobody else.
#pragma once

#include <piper/sim/flow_routes.h>
#include <piper/sim/simulate_flows.h>
#include <piper/sim/time_wheel.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace piper::sim {

class FlowSimulator {
 public:
  FlowSimulator(const FlowProgram& program, const Fabric& fabric, const SimulationOptions& options);
  SimulatedFlows run();

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kPart = UINT32_MAX - 1;  // a packet that others follow

  // What an event says besides being a message's head at a port.
  enum Special : uint32_t {
    kStartedUp = UINT32_MAX - 7,  // step: a send whose start-up is over
    kBegin,                       // a member
    kDepart,                      // step: a send that may move now
    kNextPacket,                  // step: a send whose line has its turn; tail: in lines_
    kCredit,    // step: a send of a line of which a packet has left the last port; tail: in lines_
    kArrived,   // step: a receive whose last byte is there
    kFinished,  // step
  };

  // Four words, so that an event goes from registers to its slot and back.
  struct Event {
    int64_t time;
    int64_t tail;      // when the tail of the message reaches the port
    uint64_t message;  // bytes of the message or packet, and the member that receives it
    uint64_t where;  // position in the routes or a Special, and a step: of a message under way its
                     // receive, or kNone where nobody asks when it is there
    static constexpr int kMemberBits = 24;
    static uint64_t message_of(uint64_t bytes, uint64_t to) { return bytes << kMemberBits | to; }
    static uint64_t where_of(uint32_t position, uint32_t step) {
      return uint64_t{position} << 32 | step;
    }
    uint64_t bytes() const { return message >> kMemberBits; }
    uint64_t to() const { return message & ((uint64_t{1} << kMemberBits) - 1); }
    uint32_t position() const { return static_cast<uint32_t>(where >> 32); }
    uint32_t step() const { return static_cast<uint32_t>(where); }
  };

  struct Port {
    int64_t free = 0;
    double ticks_per_byte = 0;
    double ticks_per_message = 0.5;  // half a tick rounds
    int64_t bytes = 0;
  };

  struct Member {
    int64_t processor_free = 0;  // start-ups and arrivals; unused where members share one
    int64_t memory_free = 0;
    int64_t end = 0;
    int64_t num_started = 0;
    // Sends that may start: those that wait for nothing, and the others as a heap, the first of the
    // list on top.
    uint32_t first_early = 0, end_early = 0;
    std::vector<uint32_t> late;
    int32_t in_flight = 0;
    bool is_starting = false;
    bool waits_for_processor = false;
  };

  // A processor that several members share: they start their messages in turn.
  struct Processor {
    static constexpr uint64_t kNobody = UINT64_MAX;
    int64_t free = 0;  // start-ups and arrivals
    uint64_t holder = kNobody;
    std::vector<uint64_t> waiting;  // members; those before first_waiting had their turn
    size_t first_waiting = 0;
  };

  // The messages of one member to another, where peers take turns.
  struct Line {
    uint32_t first = kNone, last = kNone;  // sends; each knows the next one
    uint64_t left = 0;                     // bytes of the first
    bool is_leaving = false;               // all of the first is in the port's queue
    // Where packets on ports are counted (MessageCosts::packets_on_ports). They come in the order
    // in which they left.
    int32_t on_ports = 0;
    bool is_held = false;       // the next packet waits for one to come
    uint32_t coming = kNone;    // the send whose packets come
    uint64_t left_to_come = 0;  // bytes of it
  };

  enum class Phase : uint8_t { kInitial, kPosted, kThere, kSenderWaits, kDone };
  struct State {
    // A receive: posted, there, or its sender ready. A send: the next one in its line.
    int64_t time;
    Phase phase;
  };
  struct Free {
    void operator()(State* state) const { std::free(state); }
  };

  FlowKind kind(uint32_t step) const { return static_cast<FlowKind>(steps_[step].kind); }
  bool has_next(uint32_t step) const {
    return steps_[step].first_next != steps_[step + 1].first_next;
  }
  uint64_t bytes_of(uint32_t step) const {
    return static_cast<uint64_t>(static_cast<double>(steps_[step].units) * options_.bytes_per_unit +
                                 0.5);
  }
  bool is_eager(uint32_t send) const {
    return bytes_of(send) <= static_cast<uint64_t>(costs_.eager_bytes);
  }
  bool is_copied(uint32_t send) const { return costs_.eager_is_copied && is_eager(send); }
  // Whether no step depends on when the message's receive was posted or when the message arrived.
  bool is_plain(uint32_t step) const { return steps_[step].is_plain && !watches_arrival_; }
  void push_special(int64_t time, Special what, uint32_t step, uint64_t member) {
    wheel_.push({time, 0, member, Event::where_of(what, step)});
  }

  // Steps.
  void begin();
  void post(uint32_t step, uint64_t member, int64_t now);
  void post_receive(uint32_t step, uint64_t member, int64_t now);
  void post_local(uint32_t step, uint64_t member, int64_t now);
  void finished(uint32_t step, uint64_t member, int64_t now);
  SimulatedFlows result() const;
  [[noreturn]] void fail_in_circle() const;

  // Messages.
  void simulate_events();
  void handle_special(Special what, uint32_t step, uint64_t member, int64_t now, int64_t line);
  uint32_t take_waiting(Member& member);
  int64_t& processor_free(uint64_t member) {
    return processors_.empty() ? members_[member].processor_free
                               : processors_[static_cast<size_t>(fabric_.processor[member])].free;
  }
  void start_next(uint64_t member, int64_t now);
  bool start_one(uint64_t member, int64_t now);
  void issue(uint32_t send, uint64_t member, int64_t now);
  void begin_transfer(uint32_t send, uint64_t from, int64_t issued, int64_t posted, int64_t now);
  uint64_t packet_of(uint64_t bytes, uint32_t first, uint64_t to) const;
  void depart(uint32_t send, uint64_t from, int64_t now);
  void join_line(uint32_t send, uint64_t from, int64_t now);
  void next_packet(uint64_t line, uint64_t from, int64_t now);
  void depart_packet(uint32_t first, uint64_t to, uint64_t bytes, uint32_t step, int64_t now,
                     int64_t latency);
  void packet_came(uint64_t line, uint64_t to, uint64_t bytes, int64_t tail);
  void credit(uint64_t line, uint64_t from, int64_t now);
  void arrive(uint32_t receive, uint64_t member, int64_t tail);
  void arrived(uint32_t receive, uint64_t member, int64_t now);
  void end_at(uint32_t step, uint64_t member, int64_t time);
  int64_t ticks(double seconds) const { return std::llround(seconds * ticks_per_second_); }
  double seconds_of(int64_t ticks) const { return static_cast<double>(ticks) / ticks_per_second_; }

  const FlowProgram& program_;
  const Fabric& fabric_;
  SimulationOptions options_;
  std::span<const FlowStep> steps_;
  FlowRoutes routes_;
  MessageCosts costs_;
  double ticks_per_second_;
  int64_t send_ticks_, receive_ticks_, local_ticks_;
  double local_ticks_per_unit_ = 0;
  bool watches_arrival_;          // of every message, not only of those that something follows
  std::vector<int64_t> latency_;  // by level
  std::vector<Port> ports_;
  std::vector<Member> members_;
  std::vector<Processor> processors_;     // empty: each member has its own
  std::vector<uint32_t> pending_;         // by step; empty where no step waits for another
  std::unique_ptr<State[], Free> state_;  // by step; zero, and no memory until it is touched
  std::vector<std::pair<int64_t, int64_t>> intervals_;
  std::unordered_map<uint64_t, uint64_t> line_of_;  // by sender and receiver: in lines_
  std::vector<Line> lines_;
  TimeWheel<Event> wheel_;
  int64_t num_done_ = 0;  // steps
  int64_t num_events_ = 0;
};

}  // namespace piper::sim
