// Simulates the step lists of all members of a collective in virtual time over the ports of a
// fabric: a discrete-event simulation, one event a message and port.
//
//   A send waits its turn at its member's start-up (send_seconds each), then its message crosses the
//   ports of its route with virtual cut-through: the head leaves a port when the message's turn
//   comes and reaches the next one at once (after the first port: one latency later), the tail
//   leaves when the port has moved all bytes and the tail has come in. Ports serve in the order in
//   which heads arrive, and wait for nobody while there is something to move: those of a sender and
//   of a receiver are never held at the same time. A port is busy for its own bytes / rate: what a
//   slower port before it stretches does not keep others out.
//   A receive is done when it is posted and the tail is there; copies and additions take their turn
//   at the member's memory.
//
// What this leaves out: packets of several messages that meet at a port do not alternate unless
// MessageCosts::packet_bytes or packets_across says so; nothing is lost, and switches hold as much
// as comes unless MessageCosts::packets_on_ports says so.
//
// Time counts picoseconds in integers; of what happens at one instant, what was caused first comes
// first. The same input gives the same result everywhere.
#pragma once

#include <piper/sim/fabric.h>
#include <piper/sim/flow_program.h>

#include <cstdint>
#include <vector>

namespace piper::sim {

struct SimulationOptions {
  double bytes_per_unit = 1;      // of the counts in the step lists
  bool record_intervals = false;  // begin and end of every step
};

struct Interval {
  double begin_seconds = 0, end_seconds = 0;
};

struct SimulatedFlows {
  double seconds = 0;                   // when the last step of all is done
  std::vector<double> member_seconds;   // when the last step of a member is done
  std::vector<double> port_bytes;       // by port
  std::vector<double> startup_seconds;  // by member: its start-ups of messages, one after another
  // By step, members one after another, when asked for. A send: from its first byte at the first
  // port until the last one has left it. A receive: from its being posted until the message is
  // there.
  std::vector<Interval> intervals;
  int64_t num_messages = 0;
  int64_t num_events = 0;

  double busy_seconds(const Fabric& fabric, size_t port) const {
    return port_bytes[port] / fabric.bytes_per_second[port];
  }
};

// Throws InvalidInput when the fabric has problems or other members than the program, InternalError
// when members wait for each other in a circle (naming one of them and what it waits for).
// Thread-safe.
SimulatedFlows simulate_flows(const FlowProgram& program, const Fabric& fabric,
                              const SimulationOptions& options = {});

}  // namespace piper::sim
