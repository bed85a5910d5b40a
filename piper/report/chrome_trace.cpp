#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/files/output.h>
#include <piper/report/chrome_trace.h>

#include <map>
#include <ostream>
#include <sstream>
#include <system_error>

namespace piper::report {
namespace {

using graph::Stream;
using graph::Task;
using graph::TaskId;
using graph::TaskKind;

constexpr size_t kFlushBytes = 1 << 16;
constexpr double kMicroseconds = 1e6;

std::string quoted(const std::string& text) { return Json(text).dump(); }

// The events of one document, separated and flushed.
class Events {
 public:
  explicit Events(std::ostream& out) : out_(out) {}
  ~Events() { flush(); }

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), "{}", first_ ? "\n" : ",\n");
    first_ = false;
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() > kFlushBytes) flush();
  }

 private:
  void flush() {
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    buffer_.clear();
  }

  std::ostream& out_;
  fmt::memory_buffer buffer_;
  bool first_ = true;
};

int32_t thread_of(Stream stream, int32_t lane) {
  return static_cast<int32_t>(stream) + graph::kNumStreams * lane;
}

void name_thread(Events& events, int32_t rank, Stream stream, int32_t lane) {
  const int32_t thread = thread_of(stream, lane);
  const std::string suffix = lane == 0 ? "" : fmt::format(" {}", lane + 1);
  events.add(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}{}"}}}})",
             rank, thread, graph::name(stream), suffix);
  events.add(
      R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
      rank, thread, static_cast<int32_t>(stream) * 1000 + lane);
}

std::string arguments(const schedule::StepGraph& step, const Task& task, int64_t bytes) {
  std::string text = fmt::format(R"("phase":"{}","kind":"{}","task":{})", graph::name(task.phase),
                                 graph::name(task.kind), task.id.value);
  if (task.operation.valid()) text += fmt::format(R"(,"operation":{})", task.operation.value);
  if (task.micro_batch >= 0) text += fmt::format(R"(,"micro_batch":{})", task.micro_batch);
  if (task.segment.valid()) {
    const schedule::Segment& segment = step.segment(task);
    text += fmt::format(R"(,"segment":"{}")", schedule::name(segment.kind));
    if (segment.layer >= 0) text += fmt::format(R"(,"layer":{})", segment.layer);
  }
  if (bytes >= 0) text += fmt::format(R"(,"bytes":{})", bytes);
  return text;
}

class TraceWriter {
 public:
  TraceWriter(Events& events, const schedule::StepGraph& step, const graph::Timeline& timeline,
              const TraceDescription& description)
      : events_(events), step_(step), timeline_(timeline), description_(description) {}

  void rank(int32_t rank) {
    events_.add(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":{}}}}})", rank,
                quoted(rank_label(rank, description_.stage_of_rank)));
    events_.add(R"({{"ph":"M","name":"process_sort_index","pid":{0},"args":{{"sort_index":{0}}}}})",
                rank);
    for (const Stream s : kStreams) stream(rank, s);
    memory(rank);
  }

 private:
  void stream(int32_t rank, Stream stream) {
    Lanes lanes;
    for (const TaskId id : graph::start_order(step_.graph, timeline_, Rank(rank), stream)) {
      const graph::Interval& interval = timeline_.tasks[id.index()];
      if (!interval.has_run()) continue;
      const int32_t known_lanes = lanes.count();
      const int32_t lane = lanes.place(interval.start_seconds, interval.end_seconds);
      if (lane == known_lanes) name_thread(events_, rank, stream, lane);
      task(step_.graph.task(id), interval, thread_of(stream, lane));
    }
  }

  void task(const Task& task, const graph::Interval& interval, int32_t thread) {
    const int64_t bytes = description_.bytes.empty() ? -1 : description_.bytes[task.id.index()];
    const double start = interval.start_seconds * kMicroseconds;
    const double end = interval.end_seconds * kMicroseconds;
    events_.add(
        R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
        quoted(schedule::task_name(step_, task)), name(bar_class(step_, task)), task.rank.value,
        thread, start, end - start, arguments(step_, task, bytes));
    // An arrow leaves a send where it starts and reaches into the end of its receive.
    if (task.kind == TaskKind::kSend) arrow('s', task, thread, start);
    if (task.kind == TaskKind::kReceive) arrow('f', task, thread, std::max(start, end - 0.001));
  }

  void arrow(char end, const Task& task, int32_t thread, double at) {
    events_.add(
        R"({{"ph":"{}","bp":"e","name":"transfer","cat":"transfer","id":{},"pid":{},"tid":{},"ts":{:.3f}}})",
        end, task.operation.value, task.rank.value, thread, at);
  }

  void memory(int32_t rank) {
    if (static_cast<size_t>(rank) >= timeline_.memory.size()) return;
    for (const graph::MemorySample& sample : timeline_.memory[rank]) {
      events_.add(R"({{"ph":"C","name":"memory","pid":{},"ts":{:.3f},"args":{{"bytes":{}}}}})",
                  rank, sample.seconds * kMicroseconds, sample.bytes);
    }
  }

  Events& events_;
  const schedule::StepGraph& step_;
  const graph::Timeline& timeline_;
  const TraceDescription& description_;
};

bool has_tasks(const graph::Graph& graph, int32_t rank) {
  for (const Stream stream : kStreams) {
    if (!graph.stream(Rank(rank), stream).empty()) return true;
  }
  return false;
}

}  // namespace

void write_chrome_trace(std::ostream& out, const schedule::StepGraph& step,
                        const graph::Timeline& timeline, const TraceDescription& description) {
  PIPER_CHECK(timeline.tasks.size() == step.graph.tasks().size(), "a timeline of another graph");
  out << R"({"written_by":"piper","displayTimeUnit":"ms","otherData":{"title":)"
      << quoted(description.title) << R"(},"traceEvents":[)";
  {
    Events events(out);
    TraceWriter writer(events, step, timeline, description);
    for (int32_t rank = 0; rank < step.graph.num_ranks(); ++rank) {
      if (has_tasks(step.graph, rank)) writer.rank(rank);
    }
  }
  out << "\n]}\n";
}

void write_chrome_trace_file(const std::filesystem::path& path, const schedule::StepGraph& step,
                             const graph::Timeline& timeline, const TraceDescription& description) {
  std::ostringstream out;
  write_chrome_trace(out, step, timeline, description);
  files::write_text_file(path, out.view());
}

}  // namespace piper::report
