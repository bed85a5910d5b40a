// The language: what the ranks do, as tasks, streams, slots and operations. Written by schedule/,
// priced by cost/, simulated in virtual time by sim/ and executed in real time by executor/. Knows
// no model and no tensor.
//
//   rank 0   compute  | F0 attention | F0 gate |            | F0 experts | ...
//            exchange |              |         | F0 dispatch|
//            send     |                                                        | F0 -> rank 2
//
// A rank has six streams. On a stream, tasks *start* strictly
// in the order of their ids; a task starts when the task before it on its stream has started
// (compute: has finished) and all its dependencies have finished. Communication tasks finish by
// themselves; several may be in flight on one stream.
//
// An operation ties the tasks of several ranks together: a send and its receive, or one exchange's
// / reduction's members. All of its tasks name the same OperationId.
//
// A slot is one storage on one rank: written by one task, read by others, and given back when its
// last reader has finished. The sum of the live slots over time is the activation memory. What is
// in a slot, and how large it is, is opaque here (SlotShape); the structure never depends on
// routing.
#pragma once

#include <piper/base/short_list.h>
#include <piper/base/strong_id.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace piper::graph {

using TaskId = StrongId<struct TaskTag>;
using SlotId = StrongId<struct SlotTag>;
using OperationId = StrongId<struct OperationTag>;
using GroupId = StrongId<struct GroupTag>;
using SegmentId =
    StrongId<struct SegmentTag>;  // opaque: an index into the writer's table of segments
using SlotShape =
    StrongId<struct SlotShapeTag>;  // opaque: an index into the writer's table of shapes

// What a task names of others.
template <class T>
using List = ShortList<T, 6>;

enum class Stream : uint8_t { kCompute, kExchange, kSend, kReceive, kStates, kHost };
inline constexpr int kNumStreams = 6;

enum class TaskKind : uint8_t {
  kCompute,         // a segment, on the compute stream
  kSend,            // slot reads[0] to `peer`
  kReceive,         // slot writes[0] from `peer`
  kExchangeCounts,  // every member tells every other how many rows will come
  kAllToAll,        // rows of slot reads[0] to slot writes[0], by the counts exchanged before
  kAllReduce,       // sums a buffer named by `segment` over the group, in rank order
  kAllGather,       // slots reads[i] of all members, put together, to slots writes[i]
  kReduceScatter,   // sums slots reads[i]; each member's part goes to its slot writes[i]
  kRing,            // what each member has passes through all of them, beside compute
  // Gathers or reductions of weights and gradients on a stream of their own, beside everything else
  kStateCollective,
  // A copy between the device and its host, on a stream of its own; the group is the rank alone
  kHostCopy,
};

// A backward whole, or in two parts: what the stage before waits for, and what adds to the weights'
// gradients.
enum class Phase : uint8_t {
  kForward,
  kRecompute,
  kBackward,
  kBackwardInput,
  kBackwardWeights,
  kUpdate,
};
constexpr bool is_backward(Phase phase) {
  return phase >= Phase::kBackward && phase <= Phase::kBackwardWeights;
}

struct Task {
  TaskId id;
  Rank rank;
  TaskKind kind = TaskKind::kCompute;
  Phase phase = Phase::kForward;
  Stream stream = Stream::kCompute;
  int32_t micro_batch = -1;  // -1: of the step, not of a micro-batch
  SegmentId segment = SegmentId::none();
  OperationId operation = OperationId::none();  // communication only
  GroupId group = GroupId::none();              // exchange and reduction only
  Rank peer = Rank::none();                     // send and receive only
  // Ranges into Graph's pools; read them through Graph.
  struct Range {
    uint32_t first = 0, count = 0;
  };
  Range dependencies, reads, writes, frees;
};

struct Slot {
  Rank rank;
  SlotShape shape;
  int32_t micro_batch = -1;
};

// What add() takes: a task with its lists. Lists are written in braces: .reads = {a, b}.
struct NewTask {
  Rank rank;
  TaskKind kind = TaskKind::kCompute;
  Phase phase = Phase::kForward;
  int32_t micro_batch = -1;
  SegmentId segment = SegmentId::none();
  OperationId operation = OperationId::none();
  GroupId group = GroupId::none();
  Rank peer = Rank::none();
  List<TaskId> dependencies;
  List<SlotId> reads, writes;
  List<SlotId> frees;            // slots whose life ends with this task
  std::optional<Stream> stream;  // another than that of the kind
};

// Built once by a writer, then immutable; const access is thread-safe.
class Graph {
 public:
  explicit Graph(int64_t num_ranks = 0);

  // --- writing ---
  GroupId add_group(std::vector<Rank> members);  // the same members give the same id
  SlotId add_slot(Slot slot);
  OperationId new_operation() { return OperationId(num_operations_++); }
  // The stream follows from the kind, unless it is named. Dependencies are earlier tasks of the
  // same rank (PIPER_CHECK); none() entries are dropped.
  TaskId add(const NewTask& task);

  // --- reading ---
  int64_t num_ranks() const { return num_ranks_; }
  int64_t num_operations() const { return num_operations_; }
  const std::vector<Task>& tasks() const { return tasks_; }
  const Task& task(TaskId id) const { return tasks_[id.index()]; }
  const std::vector<Slot>& slots() const { return slots_; }
  const Slot& slot(SlotId id) const { return slots_[id.index()]; }
  const std::vector<std::vector<Rank>>& groups() const { return groups_; }
  const std::vector<Rank>& group(GroupId id) const { return groups_[id.index()]; }
  // Whether the rank has any task: a graph may be written for some ranks only.
  bool takes_part(Rank rank) const;
  std::span<const TaskId> dependencies(const Task& task) const {
    return range(task_pool_, task.dependencies);
  }
  std::span<const SlotId> reads(const Task& task) const { return range(slot_pool_, task.reads); }
  std::span<const SlotId> writes(const Task& task) const { return range(slot_pool_, task.writes); }
  std::span<const SlotId> frees(const Task& task) const { return range(slot_pool_, task.frees); }
  // Ids of one rank's tasks on one stream, in starting order.
  const std::vector<TaskId>& stream(Rank rank, Stream stream) const {
    return streams_[rank.index() * kNumStreams + static_cast<size_t>(stream)];
  }

 private:
  template <class T>
  static std::span<const T> range(const std::vector<T>& pool, Task::Range r) {
    return {pool.data() + r.first, r.count};
  }
  template <class T>
  static Task::Range append(std::vector<T>& pool, const List<T>& list);

  int64_t num_ranks_;
  int32_t num_operations_ = 0;
  std::vector<Task> tasks_;
  std::vector<Slot> slots_;
  std::vector<std::vector<Rank>> groups_;
  std::map<std::vector<Rank>, GroupId> group_ids_;
  std::vector<TaskId> task_pool_;
  std::vector<SlotId> slot_pool_;
  std::vector<std::vector<TaskId>> streams_;
};

// Problems of a graph, one line each; empty = sound. Checks: operations complete and consistent (a
// send has its receive, an exchange has one task per member of its group, in an order that all
// members' streams agree on), slots written once, before they are read, freed once, after the last
// read, on their own rank. "Before" means: known to have finished when the other starts, through
// dependencies and the order of the streams, whatever the speed of anything. A member that takes no
// part at all (see takes_part) is not missed.
std::vector<std::string> validate(const Graph& graph);

// The dry run: simulates the graph without times. Returns "" when every task can finish, else a
// description of the cycle of waiting ("rank 1 waits in forward receive (micro-batch 0) from rank
// 0, which waits ..."). `peak_slots`, when given, receives per rank the largest number of live
// slots when every task starts as early as the rules allow.
std::string find_deadlock(const Graph& graph, std::vector<int64_t>* peak_slots = nullptr);

const char* name(TaskKind kind);
const char* name(Phase phase);
const char* name(Stream stream);

}  // namespace piper::graph
