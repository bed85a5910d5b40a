#include <fmt/format.h>
#include <piper/graph/operations.h>
#include <piper/graph/print.h>
#include <piper/graph/slot_lives.h>

#include <algorithm>
#include <unordered_map>

namespace piper::graph {
namespace {

bool is_point_to_point(const Task& task) {
  return task.kind == TaskKind::kSend || task.kind == TaskKind::kReceive;
}

bool is_exchange(const Task& task) {
  return is_communication(task.kind) && !is_point_to_point(task);
}

class OperationCheck {
 public:
  explicit OperationCheck(const Graph& graph) : graph_(graph), operations_(graph) {}

  std::vector<std::string> problems() {
    for (const Task& task : graph_.tasks()) check_task(task);
    if (!lines_.empty()) return std::move(lines_);  // what follows trusts the ids
    for (int64_t op = 0; op < graph_.num_operations(); ++op) check_operation(OperationId(op));
    check_messages();
    check_exchange_order();
    return std::move(lines_);
  }

 private:
  void add(const Task& task, const std::string& what) {
    lines_.push_back(fmt::format("#{} {} of rank {} {}", task.id.value, describe(graph_, task),
                                 task.rank.value, what));
  }

  bool is_rank(Rank rank) const { return rank.valid() && rank.value < graph_.num_ranks(); }

  void check_task(const Task& task) {
    const bool has_operation =
        task.operation.valid() && task.operation.value < graph_.num_operations();
    if (is_communication(task.kind) && !has_operation) add(task, "names no operation that exists");
    if (!is_communication(task.kind) && task.operation.valid())
      add(task, "computes and names an operation");
    if (is_point_to_point(task) && (!is_rank(task.peer) || task.peer == task.rank))
      add(task, "names no peer that exists");
    if (is_exchange(task)) {
      const bool has_group = task.group.valid() && task.group.index() < graph_.groups().size();
      if (!has_group)
        add(task, "names no group that exists");
      else if (std::count(graph_.group(task.group).begin(), graph_.group(task.group).end(),
                          task.rank) != 1)
        add(task, "is not of its group");
    }
  }

  void check_operation(OperationId id) {
    const std::span<const TaskId> tasks = operations_.tasks(id);
    if (tasks.empty()) {
      lines_.push_back(fmt::format("operation {} has no task", id.value));
      return;
    }
    const Task& first = graph_.task(tasks.front());
    if (static_cast<int64_t>(tasks.size()) != operations_.num_needed(id))
      add(first, fmt::format("is one of {} tasks of its operation; {} are needed", tasks.size(),
                             operations_.num_needed(id)));
    for (const TaskId other : tasks.subspan(1)) {
      const Task& task = graph_.task(other);
      const bool agrees =
          is_point_to_point(first) ? is_other_end(first, task) : is_same_exchange(first, task);
      if (!agrees)
        add(task, fmt::format("disagrees with #{} {} of rank {} in the same operation",
                              first.id.value, describe(graph_, first), first.rank.value));
    }
    std::vector<Rank> ranks;
    for (const TaskId task : tasks) ranks.push_back(graph_.task(task).rank);
    std::sort(ranks.begin(), ranks.end());
    if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end())
      add(first, "is of an operation with two tasks of one rank");
  }

  static bool is_other_end(const Task& a, const Task& b) {
    return is_point_to_point(b) && a.kind != b.kind && a.peer == b.rank && b.peer == a.rank &&
           a.phase == b.phase && a.micro_batch == b.micro_batch;
  }

  static bool is_same_exchange(const Task& a, const Task& b) {
    return a.kind == b.kind && a.group == b.group && a.phase == b.phase &&
           a.micro_batch == b.micro_batch && a.segment == b.segment;
  }

  // From one rank to another, messages of the forwards are received in the order in which they are
  // sent, and so are those of the backwards. (Where a pipeline is a V both go the same way, and a
  // rank may want them in another order.)
  void check_messages() {
    std::unordered_map<uint64_t, std::vector<const Task*>> sent, received;
    for (const Task& task : graph_.tasks()) {
      if (!is_point_to_point(task) || operations_.tasks(task.operation).size() != 2) continue;
      const bool sends = task.kind == TaskKind::kSend;
      const uint64_t from = (sends ? task.rank : task.peer).index();
      const uint64_t to = (sends ? task.peer : task.rank).index();
      const uint64_t pair = from << 31 | to;
      (sends ? sent : received)[pair << 1 | (task.phase == Phase::kForward ? 1 : 0)].push_back(
          &task);
    }
    for (const auto& [channel, sends] : sent) {
      const std::vector<const Task*>& receives = received[channel];
      for (size_t i = 0; i < std::min(sends.size(), receives.size()); ++i)
        if (sends[i]->operation != receives[i]->operation) {
          add(*receives[i],
              fmt::format("is out of order: #{} {} of rank {} is sent then", sends[i]->id.value,
                          describe(graph_, *sends[i]), sends[i]->rank.value));
          break;
        }
    }
  }

  // There is one order of all exchanges that every rank's exchange stream follows: Kahn's algorithm
  // on the operations, with an edge from each to the next on every stream.
  void check_exchange_order() {
    std::vector<TaskId> next(graph_.tasks().size(), TaskId::none());
    std::vector<int32_t> num_before(graph_.num_operations());
    for (int64_t rank = 0; rank < graph_.num_ranks(); ++rank) {
      const std::vector<TaskId>& ids = graph_.stream(Rank(rank), Stream::kExchange);
      for (size_t i = 1; i < ids.size(); ++i) {
        next[ids[i - 1].index()] = ids[i];
        ++num_before[graph_.task(ids[i]).operation.index()];
      }
    }
    std::vector<OperationId> ready;
    for (int64_t op = 0; op < graph_.num_operations(); ++op)
      if (num_before[op] == 0) ready.push_back(OperationId(op));
    while (!ready.empty()) {
      const OperationId id = ready.back();
      ready.pop_back();
      for (const TaskId task : operations_.tasks(id))
        if (const TaskId after = next[task.index()]; after.valid())
          if (--num_before[graph_.task(after).operation.index()] == 0)
            ready.push_back(graph_.task(after).operation);
    }
    const auto left =
        std::find_if(num_before.begin(), num_before.end(), [](int32_t n) { return n > 0; });
    if (left == num_before.end()) return;
    const OperationId id(left - num_before.begin());
    add(graph_.task(operations_.tasks(id).front()),
        "comes in no order that its members' exchange streams agree on");
  }

  const Graph& graph_;
  Operations operations_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> validate(const Graph& graph) {
  std::vector<std::string> lines = OperationCheck(graph).problems();
  const std::vector<std::string> lives = slot_problems(graph);
  lines.insert(lines.end(), lives.begin(), lives.end());
  return lines;
}

}  // namespace piper::graph
