// The network that messages of a collective cross, as ports: what they wait for, and how long the
// way is. sim/simulate_flows.h simulates step lists over it.
//
// A port moves one direction of what a unit of the machine says (out) or hears (in), at a rate,
// first come first served. A message between two members
//
//   of one node        member_out -> member_in
//   of one unit of     nic_out -> out of the sender's units of levels 1 .. l-1
//   level l, l > 0             -> between those units, where pairs have ports of their own
//                              -> in of the receiver's units of levels l-1 .. 1 -> nic_in
//
// where l is the innermost level whose unit they share. Inner ports and NICs are apart: what
// leaves the node does not pass the ports inside of it, as in cost/links.h. Units of a level need
// not lie in those of the next: a rail switch joins NICs of many nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace piper::sim {

inline constexpr int32_t kNoPort = -1;

// How the two sides of a message larger than MessageCosts::eager_bytes come together. A way back
// takes as long as the latency of the way there.
enum class Rendezvous : uint8_t {
  kReady,  // bytes move from when both are posted: credits lie ready
  kGrant,  // the receiver tells the sender that it is ready: one latency
  kOffer,  // the sender offers, the receiver answers: two latencies
};

// In which order the messages of a member use its first port.
enum class Turns : uint8_t {
  kInOrder,  // as they were posted, one queue: whole messages
  kByPeer,   // one queue for each peer, which take turns in packets: connections, queue pairs
};

// What a message or a local step costs besides its bytes on the ports.
struct MessageCosts {
  double send_seconds = 0;  // start-up at the sender, one message after another
  double receive_seconds =
      0;  // at the receiver when the message is there, in turn with its start-ups
  int64_t eager_bytes = INT64_MAX;  // up to this size a send does not wait for its receive
  bool eager_is_copied = false;     // and is done when it has started: its bytes are kept elsewhere
  Rendezvous rendezvous = Rendezvous::kReady;
  // A send is done when its message has arrived (MPI's rendezvous, an acknowledged write), not when
  // its last byte has left the first port. Never of a message that was copied.
  bool sends_end_at_arrival = false;
  int32_t max_in_flight = 0;  // messages of one member on the way at a time; 0: any number
  Turns turns = Turns::kInOrder;
  int64_t packet_bytes = 0;  // larger messages take turns on the ports in packets; 0: whole
  // Messages that cross ports of units are cut into so many packets, all others not. A wide port
  // behind narrow ones serves one message after another: four that come in together leave as if
  // the last had come three quarters of its time later; in packets, three quarters of a packet's.
  int32_t packets_across = 1;
  // Packets of one member to another that are on ports at a time; 0: any number, and queues of
  // switches hold as much as comes. With few, who meets a full port keeps the rest at its sender,
  // as under credits: messages then share a port as a fluid. Needs Turns::kByPeer. Latency lies
  // behind the last port here, so that credits come back without any.
  int32_t packets_on_ports = 0;
  // Start of a copy or an addition at a memory that was idle: what queues behind it starts with it.
  // A step of no units costs nothing.
  double local_seconds = 0;
  double local_bytes_per_second = 0;  // of the member's memory, read and write each; 0: no time
};

struct FabricLevel {
  std::string name;            // "node", "rail switch"
  double latency_seconds = 0;  // of a message whose innermost common unit is of this level, without
                               // start-up
  std::vector<int32_t> unit;   // by member; 0, 1, ... without gaps
  // By unit, kNoPort where nothing is narrower than what lies below. Unused of level 0 (the NICs)
  // and of the last (all members).
  std::vector<int32_t> out, in;
  // By pair of units (from * number of units + to): the links between units that share one of the
  // next level. Empty: none.
  std::vector<int32_t> between;
};

struct Fabric {
  std::vector<double> bytes_per_second;        // by port
  std::vector<double> message_seconds;         // by port: of a message or packet, beside its bytes
  std::vector<std::string> port_name;          // by port: "NIC 2 of node 5, out"
  std::vector<FabricLevel> levels;             // nodes first; the last one has a single unit
  std::vector<int32_t> member_out, member_in;  // by member: inside the node
  std::vector<int32_t> nic_out, nic_in;  // by member: its NIC; kNoPort where there is one node
  // By member: who sees to its start-ups and arrivals; 0, 1, ... without gaps. A member of those
  // that share one goes on until it has nothing to start, then comes the next that waited. Empty:
  // each has its own.
  std::vector<int32_t> processor;
  MessageCosts costs;

  int64_t num_members() const { return static_cast<int64_t>(member_out.size()); }
  int32_t add_port(std::string name, double rate, double seconds_of_message = 0);
  // Innermost level whose unit both share.
  size_t common_level(int64_t from, int64_t to) const;
  // Ports in the order of crossing; none from a member to itself.
  std::vector<int32_t> route(int64_t from, int64_t to) const;
  // Without start-up and without the time that bytes take.
  double latency_seconds(int64_t from, int64_t to) const;
};

// What is wrong with a description, one line each: rates that are not positive and finite, times
// that are negative, lists that are too short, ports that do not exist. Empty: nothing.
std::vector<std::string> problems_of(const Fabric& fabric);

// Adds one node-level entry with inner ports and NICs: what all fabrics have in common. nic[m] is
// the NIC of its node (0, 1, ...) of member m. Rates in bytes/s, of a member inside and of one
// NIC; the seconds that they take for every message or packet besides. NICs are left out where
// there is a single node.
struct NodePorts {
  double inner_bytes_per_second = 0;
  double nic_bytes_per_second = 0;
  double latency_seconds = 0;  // inside the node
  double inner_message_seconds = 0;
  double nic_message_seconds = 0;
};
void add_nodes(Fabric& fabric, const std::vector<int32_t>& node, const std::vector<int32_t>& nic,
               const NodePorts& ports);

// A link from each unit of a level to each other one in the same unit of the next level: minimal
// routing, where a pair has its own link and no other.
void add_links_between(Fabric& fabric, size_t level, double bytes_per_second);

}  // namespace piper::sim
