// A device's link to its host during a step: copies either way, in the order in which they are
// posted, as sim simulates them.
//
//   a copy starts once it is posted, the one posted before it has started, and the copy it is
//   behind has ended
//   n copies that move share the link: each goes at 1/n of its speed alone
#pragma once

#include <piper/cluster/cluster.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace piper::cost {

// Bytes a second, one way: the number kHostRateName, measured or described; else PCIe 4
// x16 as copied, and of CPUs, whose "host" is memory apart (executor/host_memory.h), 1 GB/s. Those
// keep to it when they run.
inline constexpr const char* kHostRateName = "host_copy_bytes_per_second";
double host_bytes_per_second(const cluster::Cluster& cluster);

// Not thread-safe. Allocates when it is made, never later.
class HostLink {
 public:
  static constexpr int32_t kNone = -1;

  explicit HostLink(size_t most_copies);
  // As it was made.
  void reset();
  // Copies are numbered from 0. `seconds`: alone; `behind`: a copy posted before, or kNone.
  // Requires `at` no earlier than that of the copy before and than any end that was asked for.
  void post(double at, double seconds, int32_t behind = kNone);
  // When that copy ends, if nothing is posted until then. Over all calls, a copy takes time
  // linear in those that move at once.
  double end_of(int32_t copy);
  int32_t num_posted() const { return static_cast<int32_t>(copies_.size()); }

 private:
  struct Copy {
    double at, seconds;
    int32_t behind;
    double end;
  };
  struct Moving {
    int32_t copy;
    double left;  // seconds alone
  };
  void go_on();
  void move_until(double then);

  std::vector<Copy> copies_;
  std::vector<Moving> moving_;
  size_t next_ = 0;  // that starts
  double now_ = 0;
};

}  // namespace piper::cost
