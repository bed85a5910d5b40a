#include <piper/base/error.h>
#include <piper/graph/graph.h>

#include <algorithm>

namespace piper::graph {
namespace {

Stream stream_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::kCompute:
      return Stream::kCompute;
    case TaskKind::kSend:
      return Stream::kSend;
    case TaskKind::kReceive:
      return Stream::kReceive;
    case TaskKind::kExchangeCounts:
    case TaskKind::kAllToAll:
    case TaskKind::kAllReduce:
    case TaskKind::kAllGather:
    case TaskKind::kReduceScatter:
    case TaskKind::kRing:
      return Stream::kExchange;
    case TaskKind::kStateCollective:
      return Stream::kStates;
    case TaskKind::kHostCopy:
      return Stream::kHost;
  }
  return Stream::kCompute;
}

}  // namespace

Graph::Graph(int64_t num_ranks) : num_ranks_(num_ranks), streams_(num_ranks * kNumStreams) {}

GroupId Graph::add_group(std::vector<Rank> members) {
  const auto [it, is_new] = group_ids_.try_emplace(members, GroupId(groups_.size()));
  if (is_new) groups_.push_back(std::move(members));
  return it->second;
}

SlotId Graph::add_slot(Slot slot) {
  slots_.push_back(slot);
  return SlotId(slots_.size() - 1);
}

template <class T>
Task::Range Graph::append(std::vector<T>& pool, const List<T>& list) {
  const auto first = static_cast<uint32_t>(pool.size());
  for (const T& id : list)
    if (id.valid()) pool.push_back(id);
  return {first, static_cast<uint32_t>(pool.size()) - first};
}

TaskId Graph::add(const NewTask& task) {
  PIPER_CHECK(task.rank.valid() && task.rank.value < num_ranks_, "a task outside the world");
  const TaskId id(tasks_.size());
  for (const TaskId dependency : task.dependencies)
    PIPER_CHECK(
        !dependency.valid() || (dependency < id && tasks_[dependency.index()].rank == task.rank),
        "a dependency is an earlier task of the same rank");
  const Stream stream = task.stream.value_or(stream_of(task.kind));
  tasks_.push_back({.id = id,
                    .rank = task.rank,
                    .kind = task.kind,
                    .phase = task.phase,
                    .stream = stream,
                    .micro_batch = task.micro_batch,
                    .segment = task.segment,
                    .operation = task.operation,
                    .group = task.group,
                    .peer = task.peer,
                    .dependencies = append(task_pool_, task.dependencies),
                    .reads = append(slot_pool_, task.reads),
                    .writes = append(slot_pool_, task.writes),
                    .frees = append(slot_pool_, task.frees)});
  streams_[task.rank.index() * kNumStreams + static_cast<size_t>(stream)].push_back(id);
  return id;
}

bool Graph::takes_part(Rank rank) const {
  const auto first = streams_.begin() + static_cast<std::ptrdiff_t>(rank.index() * kNumStreams);
  return std::any_of(first, first + kNumStreams, [](const auto& ids) { return !ids.empty(); });
}

const char* name(TaskKind kind) {
  switch (kind) {
    case TaskKind::kCompute:
      return "compute";
    case TaskKind::kSend:
      return "send";
    case TaskKind::kReceive:
      return "receive";
    case TaskKind::kExchangeCounts:
      return "counts";
    case TaskKind::kAllToAll:
      return "all-to-all";
    case TaskKind::kAllReduce:
      return "all-reduce";
    case TaskKind::kAllGather:
      return "all-gather";
    case TaskKind::kReduceScatter:
      return "reduce-scatter";
    case TaskKind::kRing:
      return "ring";
    case TaskKind::kStateCollective:
      return "collective of states";
    case TaskKind::kHostCopy:
      return "host copy";
  }
  return "?";
}

const char* name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kBackward:
      return "backward";
    case Phase::kBackwardInput:
      return "backward of the input";
    case Phase::kBackwardWeights:
      return "backward of the weights";
    case Phase::kUpdate:
      return "update";
  }
  return "?";
}

const char* name(Stream stream) {
  switch (stream) {
    case Stream::kCompute:
      return "compute";
    case Stream::kExchange:
      return "exchange";
    case Stream::kSend:
      return "send";
    case Stream::kReceive:
      return "receive";
    case Stream::kStates:
      return "states";
    case Stream::kHost:
      return "host";
  }
  return "?";
}

}  // namespace piper::graph
