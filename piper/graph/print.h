// A graph as text, rank by rank and stream by stream: for golden files and for reading.
#pragma once

#include <piper/graph/graph.h>

#include <functional>
#include <string>

namespace piper::graph {

// One line a task. `title` names a task (its writer knows better than the graph); the default is
// its kind, phase and micro-batch. Ranks without tasks and empty streams are left out.
//
//   rank 0
//     compute
//       #0 forward compute (micro-batch 0) writes 0
//     send
//       #1 forward send (micro-batch 0) to rank 1 after #0 reads 0 frees 0
std::string print(const Graph& graph,
                  const std::function<std::string(const Task&)>& title = nullptr);

// The default title: "forward receive (micro-batch 0) from rank 1".
std::string describe(const Graph& graph, const Task& task);

}  // namespace piper::graph
