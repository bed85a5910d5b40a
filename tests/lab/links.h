// The network of the lab in virtual time: FIFO links with virtual cut-through. Knows no sockets.
//
//   rank --- NIC up --+-- (rack up -- rack down) --+-- NIC down --- rank      between nodes
//   rank --- port out ------------------------------- port in ----- rank      within a node
//
// A link serves one frame at a time and never idles while a frame waits (each queue for itself: a
// frame never reserves two links together, which would leave gaps that no hardware has and fake
// gains of pipelining). Where frames leave their rank, its port out and NIC up, connections take
// turns of a frame, as queue pairs do in a NIC: a sender that hands over whole messages at once
// does not decide in what order receivers are served. All other links serve in the order in which
// heads arrive. A frame's head reaches the next link `latency` after its service began; a faster
// link begins later, so that it ends with the tail.
//
// Where links serve first come, first served, short frames have a lane of their own, which goes
// first: announcements of messages do not wait behind other connections' messages. No frame
// overtakes an earlier one of the same connection, but for those that are marked: they always go
// first and cost their bytes alone. These are acknowledgements, which a NIC makes by itself, and
// the control channel, which has a network of its own elsewhere.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <vector>

namespace piper::lab {

using Nanoseconds = int64_t;

inline constexpr int64_t kShortFrame = 256;  // bytes

struct Link {
  std::string name;
  double bytes_per_second = 0;  // > 0
  Nanoseconds latency = 0;      // of a head
  Nanoseconds frame_cost = 0;   // of every frame that is not marked, beside its bytes
  bool takes_turns = false;     // connections do; otherwise first come, first served
  // What it did.
  Nanoseconds free_at = 0, first_free_at = 0;
  int64_t num_frames = 0;
  int64_t num_bytes = 0;
};

struct Speed {
  double bytes_per_second = 1;
  Nanoseconds latency = 0;
  Nanoseconds frame_cost = 0;
};

// Every rank has a port of its own towards its node; rank r of a node speaks to other nodes through
// NIC r * nics / ranks.
struct Layout {
  int64_t num_nodes = 1, num_ranks = 1, num_nics = 1;
  int64_t nodes_per_rack = 0;  // 0: no racks
  Speed inner, nic, rack;      // latency of `nic`: of the whole way between two nodes of a rack
  int64_t node_of(int64_t rank) const { return rank / num_ranks; }
  int64_t rack_of(int64_t rank) const {
    return nodes_per_rack == 0 ? 0 : node_of(rank) / nodes_per_rack;
  }
  int64_t nic_of(int64_t rank) const { return rank % num_ranks * num_nics / num_ranks; }
  int64_t size() const { return num_nodes * num_ranks; }
};

struct Frame {
  int64_t number = 0;  // the caller's
  int64_t bytes = 0;
  int64_t from = 0, to = 0;  // two different ranks of the world
  int64_t connection = 0;    // of theirs
  bool goes_first = false;
};

struct Delivery {
  Nanoseconds at = 0;
  Frame frame;
};

// Not thread-safe. Times never go backwards: enter() and pop() are called with `now` ascending.
class Network {
 public:
  explicit Network(const Layout& layout);

  void enter(Nanoseconds now, const Frame& frame);
  // The next frame whose time has come.
  std::optional<Delivery> pop(Nanoseconds now);
  // Before then pop() has nothing to give, unless something enters.
  std::optional<Nanoseconds> next() const;

  // Sets the rate of all NICs, for frames whose service begins from now on.
  void set_nic_rate(double bytes_per_second);

  const std::vector<Link>& links() const { return links_; }

 private:
  struct Hop {
    Nanoseconds at = 0;  // the head reaches the link
    uint64_t order = 0;  // first come, first served at equal times
    Frame frame;
    int32_t position = 0;  // of the link on the way
    bool first = false;    // in the lane that goes first
    bool is_turn = false;  // no frame: the link may have become free
  };
  // A link where connections take turns has these queues.
  struct Turns {
    std::map<std::array<int64_t, 3>, std::deque<Hop>> waiting;  // by connection; none is empty
    std::deque<std::array<int64_t, 3>> order;                   // of those
    bool is_called = false;  // an event lies ahead at which the next one is served
  };
  struct Arrival {
    Delivery delivery;
    bool first = false;
  };
  struct Later {
    bool operator()(const Hop& a, const Hop& b) const {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
    bool operator()(const Arrival& a, const Arrival& b) const {
      return a.delivery.at > b.delivery.at;
    }
  };

  int32_t link_at(const Hop& hop) const;  // -1: no further link
  static std::array<int64_t, 3> connection_of(const Frame& frame) {
    return {frame.from, frame.to, frame.connection};
  }
  void arrive(Hop hop);
  void next_turn(int32_t link, Nanoseconds now);
  void serve(Hop hop);
  void serve_until(Nanoseconds now);

  Layout layout_;
  std::vector<Link> links_;
  std::vector<Turns> turns_;  // by link
  int64_t first_nic_ = 0, first_rack_ = 0;
  Nanoseconds least_latency_ = 0;
  uint64_t next_order_ = 0;
  // Frames of a connection that are under way, not in the lane that goes first; none are 0.
  std::map<std::array<int64_t, 3>, int64_t> num_waiting_;
  std::priority_queue<Hop, std::vector<Hop>, Later> hops_;
  std::priority_queue<Arrival, std::vector<Arrival>, Later> arrivals_;
};

}  // namespace piper::lab
