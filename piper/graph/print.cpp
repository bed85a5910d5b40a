#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/graph/print.h>

namespace piper::graph {
namespace {

template <class Id>
void append_ids(std::string& text, const char* label, const char* sign, std::span<const Id> ids) {
  if (ids.empty()) return;
  text += fmt::format(" {}", label);
  for (const Id id : ids) text += fmt::format(" {}{}", sign, id.value);
}

}  // namespace

std::string describe(const Graph& graph, const Task& task) {
  std::string text = fmt::format("{} {}", name(task.phase), name(task.kind));
  if (task.micro_batch >= 0) text += fmt::format(" (micro-batch {})", task.micro_batch);
  if (task.kind == TaskKind::kSend) text += fmt::format(" to rank {}", task.peer.value);
  if (task.kind == TaskKind::kReceive) text += fmt::format(" from rank {}", task.peer.value);
  if (task.group.valid() && task.group.index() < graph.groups().size())
    text += fmt::format(" of group {}", task.group.value);
  return text;
}

std::string print(const Graph& graph, const std::function<std::string(const Task&)>& title) {
  std::string text;
  for (int64_t rank = 0; rank < graph.num_ranks(); ++rank) {
    if (!graph.takes_part(Rank(rank))) continue;
    text += fmt::format("rank {}\n", rank);
    for (const Stream stream : {Stream::kCompute, Stream::kExchange, Stream::kSend,
                                Stream::kReceive, Stream::kStates, Stream::kHost}) {
      const std::vector<TaskId>& ids = graph.stream(Rank(rank), stream);
      if (!ids.empty()) text += fmt::format("  {}\n", name(stream));
      for (const TaskId id : ids) {
        const Task& task = graph.task(id);
        text += fmt::format("    #{} {}", id.value, title ? title(task) : describe(graph, task));
        append_ids(text, "after", "#", graph.dependencies(task));
        append_ids(text, "reads", "", graph.reads(task));
        append_ids(text, "writes", "", graph.writes(task));
        append_ids(text, "frees", "", graph.frees(task));
        text += '\n';
      }
    }
  }
  return text;
}

}  // namespace piper::graph
