// When each task ran: the common product of simulation and executor.
#pragma once

#include <piper/graph/graph.h>

#include <cstdint>
#include <vector>

namespace piper::graph {

// From a task's start (communication: when it was posted) to its end.
struct Interval {
  double start_seconds = -1;
  double end_seconds = -1;
  bool has_run() const { return end_seconds >= 0; }
};

struct MemorySample {
  double seconds = 0;
  int64_t bytes = 0;
};

// Indexed by TaskId; a task that has not run has has_run() == false.
struct Timeline {
  std::vector<Interval> tasks;
  std::vector<std::vector<MemorySample>> memory;  // by rank, ascending in time; may be empty
  double seconds() const;                         // end of the last task; 0 when none ran
  std::vector<int64_t> peak_bytes;                // by rank
};

// Ids of one rank's tasks on one stream in the order in which they started (ties by id); tasks that
// have not run are left out.
std::vector<TaskId> start_order(const Graph& graph, const Timeline& timeline, Rank rank,
                                Stream stream);

}  // namespace piper::graph
