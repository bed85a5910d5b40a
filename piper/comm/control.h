// The control channel: what the processes of a run tell each other besides their messages. A star
// of TCP connections with process 0 as its hub. It brings the processes together, shares texts
// among them, and notices when one dies or hangs, which the engines that carry the bytes do not.
//
// Every process beats twice a second from a thread of its own, so a rank that computes for long is
// no alarm, and tells what its ranks do as soon as that changes. A connection that ends without a
// goodbye is a death; no beat for `heartbeat_timeout_seconds` is a hang. Time in which the observer
// itself stood still (a suspended machine) counts for nobody.
//
// Strangers: whoever connects has to prove that it knows the run's secret (handshake.h) within
// seconds and in a few small frames; nothing is allocated for what it merely announces, and nobody
// waits behind strangers (guarded_acceptor.h). The port is open on one address: loopback, the
// launcher's master address, or PIPER_INTERFACE. It is closed once the run has begun.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/comm/control_frame.h>
#include <piper/comm/launch.h>
#include <piper/comm/network.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace piper::comm {

// How old what is known of another process's doings may be while it lives.
constexpr double kActivitySeconds = 0.02;

struct ControlOptions {
  double heartbeat_seconds = 0.5;
  double heartbeat_timeout_seconds = 10;
  double connect_timeout_seconds = 60;  // until all processes are there
  double share_timeout_seconds = 120;   // between the first and the last process of one share()
  double introduction_timeout_seconds = 5;
  double leave_timeout_seconds = 600;  // between the first and the last process that leaves
  std::string interface;               // to listen on: an address or an interface's name; or ""
  bool listen_everywhere = false;      // on all interfaces; `interface` is what others are told

  Reach reach() const { return listen_everywhere ? Reach::kEverywhere : Reach::kOneAddress; }
};

// The defaults with PIPER_HEARTBEAT_SECONDS, PIPER_INTERFACE and PIPER_LISTEN_EVERYWHERE (0 or 1).
// Throws InvalidInput.
ControlOptions control_options_from(const LookUp& look_up = from_environment);

struct ControlEvents {
  // A rank has failed, in this process or elsewhere: called once, in the control thread. The reason
  // of a death or a hang begins with "rank 3 (host a, pid 7) ".
  std::function<void(const FailureBody& failure)> failed;
  // What the ranks of this process do; called by the control thread for every beat.
  std::function<std::vector<RankActivity>()> activity;
};

// Thread-safe, but one thread at a time calls share() and leave().
class Control {
 public:
  // The hub listens; any other process connects and introduces itself. Throws InvalidInput when the
  // port cannot be had, CommError when the hub cannot be reached or refuses.
  Control(const Launch& launch, int64_t num_ranks, const ControlOptions& options,
          ControlEvents events);
  ~Control();  // leaves at once if leave() was not called: a death to the others

  // Every process's text, by process; see World::share.
  std::vector<std::string> share(const std::string& what, const std::string& text);

  // A rank of this process has failed: tells everyone. Only the first failure of a run counts.
  void report(FailureBody failure);

  // Its messages no longer come through: a failure of its own unless the channel learns the true
  // cause within a second.
  void suspect(int64_t process, const std::string& why);

  // What events.activity says has changed: the others are told at once, but no more often than
  // kActivitySeconds (and 0.2 ms for each process of the run). Cheap: meant for every task.
  void activity_changed();

  // Every process is there: closes the port of the hub.
  void stop_admitting();

  // Says goodbye and waits until everyone has, or a failure is told, or the time is over. False
  // when not all have left in peace.
  bool leave();

  // The address of this process as the hub sees it: where others of the run can reach it.
  std::string local_address() const;

  class Node;  // the hub or a member

 private:
  std::unique_ptr<Node> node_;
};

}  // namespace piper::comm
