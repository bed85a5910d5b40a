// Steps that are wrong in one place: the checks of graph/ must find it.
#include <doctest/doctest.h>
#include <piper/schedule/step.h>
#include <testing/schedule/example_model.h>

#include <algorithm>
#include <functional>

using namespace piper;
using namespace piper::schedule;
using graph::Graph;
using graph::NewTask;
using graph::Task;
using graph::TaskId;
using graph::TaskKind;
using strategy::PipelineSchedule;

namespace {

// The same graph with one change: `edit` may alter a task or drop it (by returning false).
Graph edited(const Graph& graph, const std::function<bool(NewTask&, const Task&)>& edit,
             const std::vector<TaskId>& order = {}) {
  Graph out(graph.num_ranks());
  for (const auto& group : graph.groups()) out.add_group(group);
  for (const graph::Slot& slot : graph.slots()) out.add_slot(slot);
  for (int64_t i = 0; i < graph.num_operations(); ++i) out.new_operation();
  std::vector<TaskId> new_ids(graph.tasks().size(), TaskId::none());
  for (size_t i = 0; i < graph.tasks().size(); ++i) {
    const Task& task = order.empty() ? graph.tasks()[i] : graph.task(order[i]);
    NewTask copy{.rank = task.rank,
                 .kind = task.kind,
                 .phase = task.phase,
                 .micro_batch = task.micro_batch,
                 .segment = task.segment,
                 .operation = task.operation,
                 .group = task.group,
                 .peer = task.peer,
                 .reads = graph.reads(task),
                 .writes = graph.writes(task),
                 .frees = graph.frees(task)};
    for (const TaskId id : graph.dependencies(task))
      copy.dependencies.push_back(new_ids[id.index()]);
    if (edit(copy, task)) new_ids[task.id.index()] = out.add(copy);
  }
  return out;
}

}  // namespace

TEST_CASE("a receive that is dropped is found by both checks") {
  const StepGraph step =
      write_step(example::model({4, 4}), example::strategy({.pp = 2, .ep = 2, .dp = 2}, 2, 2));
  const Graph broken = edited(step.graph, [](NewTask& task, const Task&) {
    return !(task.kind == TaskKind::kReceive && task.rank == Rank(2) && task.micro_batch == 1);
  });
  CHECK(example::first_problem(broken).find("is one of 1 tasks of its operation; 2 are needed") !=
        std::string::npos);
  CHECK(graph::find_deadlock(broken).find(
            "forward send (micro-batch 1) to rank 2, which has no task for it") !=
        std::string::npos);
}

TEST_CASE("two exchanges swapped on one rank are found") {
  const StepGraph step =
      write_step(example::model({4}), example::strategy({.pp = 1, .ep = 2, .dp = 4}, 1, 2));
  const auto& exchanges = step.graph.stream(Rank(1), graph::Stream::kExchange);
  // The reductions of layer and embedding: independent of each other, so only their order can be
  // wrong.
  const auto find = [&](const char* title) {
    return *std::find_if(exchanges.begin(), exchanges.end(),
                         [&](TaskId id) { return task_name(step, step.graph.task(id)) == title; });
  };
  const TaskId a = find("U L0 dense gradients"), b = find("U L0 expert gradients");
  std::vector<TaskId> order;
  for (const Task& task : step.graph.tasks())
    order.push_back(task.id == a ? b : task.id == b ? a : task.id);
  const Graph broken = edited(
      step.graph, [](NewTask&, const Task&) { return true; }, order);
  CHECK(example::first_problem(broken).find("comes in no order") != std::string::npos);
}

TEST_CASE("stages that follow different schedules deadlock, and the circle is named") {
  // Rank 1 follows GPipe: it makes the gradient of micro-batch 0 after the forward of 1. Rank 0 is
  // made to wait for that gradient before the forward of 1.
  const StepGraph step =
      write_step(example::model({0, 0}),
                 example::strategy({.pp = 2, .ep = 1, .dp = 1}, 2, 2, PipelineSchedule::kGPipe));
  TaskId gradient = TaskId::none();
  const Graph broken = edited(step.graph, [&](NewTask& task, const Task& old) {
    const std::string title = task_name(step, old);
    if (title == "B0 receive <- 1") gradient = old.id;
    if (title == "F1 L0 attention") task.dependencies.push_back(gradient);
    return true;
  });
  CHECK(gradient.valid());
  CHECK(graph::find_deadlock(broken) ==
        "rank 0 waits in backward receive (micro-batch 0) from rank 1, which waits in forward "
        "receive (micro-batch 1) from rank 0, and so the circle closes");
}
