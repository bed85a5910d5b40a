// The way back from a Chrome trace to a chart; see chrome_trace.h.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/report/chrome_trace.h>

#include <algorithm>
#include <map>
#include <optional>

namespace piper::report {
namespace {

constexpr double kSecondsPerMicrosecond = 1e-6;
constexpr int64_t kMaxRank = 1 << 24;
constexpr double kMaxMicroseconds = 1e15;

std::optional<BarClass> class_named(const std::string& text) {
  for (const BarClass c : kBarClasses) {
    if (text == name(c)) return c;
  }
  return std::nullopt;
}

class TraceParser {
 public:
  explicit TraceParser(Problems* problems) : problems_(problems) {}

  void event(const Json& json, size_t index) {
    ObjectReader reader(json, fmt::format("traceEvents[{}]", index), problems_);
    const std::string kind = reader.text("ph");
    if (kind == "X") bar(reader);
    if (kind == "C") memory(reader);
    if (kind == "M") metadata(reader);
  }

  Gantt finish() {
    Gantt gantt;
    for (auto& [number, rank] : ranks_) {
      std::stable_sort(rank.bars.begin(), rank.bars.end(), [](const Bar& a, const Bar& b) {
        return std::pair(a.stream, a.start_seconds) < std::pair(b.stream, b.start_seconds);
      });
      for (const Bar& bar : rank.bars) gantt.seconds = std::max(gantt.seconds, bar.end_seconds);
      gantt.ranks.push_back(std::move(rank));
    }
    return gantt;
  }

 private:
  GanttRank& rank(ObjectReader& reader) {
    const int64_t number = reader.integer("pid", 0, kMaxRank);
    const auto [it, is_new] = ranks_.try_emplace(number);
    if (is_new) {
      it->second.rank = static_cast<int32_t>(number);
      it->second.label = rank_label(number, {});
    }
    return it->second;
  }

  void bar(ObjectReader& reader) {
    const std::string category = reader.text("cat");
    const std::optional<BarClass> bar_class = class_named(category);
    if (!bar_class) {
      reader.problem("cat", "is '" + category + "', which is no kind of task of a step");
      return;
    }
    const int64_t thread = reader.integer("tid", 0, kMaxRank);
    const double start = reader.number("ts", 0, kMaxMicroseconds);
    const double duration = reader.number("dur", 0, kMaxMicroseconds);
    rank(reader).bars.push_back({.stream = kStreams[thread % graph::kNumStreams],
                                 .lane = static_cast<int32_t>(thread / graph::kNumStreams),
                                 .bar_class = *bar_class,
                                 .start_seconds = start * kSecondsPerMicrosecond,
                                 .end_seconds = (start + duration) * kSecondsPerMicrosecond,
                                 .name = reader.text("name")});
  }

  void memory(ObjectReader& reader) {
    const Json* arguments = reader.object("args");
    if (arguments == nullptr) return;
    ObjectReader values(*arguments, reader.path("args"), problems_);
    const double at = reader.number("ts", 0, kMaxMicroseconds) * kSecondsPerMicrosecond;
    rank(reader).memory.push_back(
        {.seconds = at, .bytes = values.integer("bytes", 0, int64_t{1} << 60)});
  }

  void metadata(ObjectReader& reader) {
    const Json* arguments = reader.object("args");
    if (reader.text("name") != "process_name" || arguments == nullptr) return;
    rank(reader).label = ObjectReader(*arguments, reader.path("args"), problems_).text("name");
  }

  Problems* problems_;
  std::map<int64_t, GanttRank> ranks_;
};

}  // namespace

Gantt parse_chrome_trace(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  const Json* events = reader.array("traceEvents");
  if (events == nullptr) {
    if (problems.empty()) problems.add("has no 'traceEvents': it is not a Chrome trace");
    problems.finish();
  }
  TraceParser parser(&problems);
  for (size_t i = 0; i < events->size(); ++i) {
    parser.event((*events)[i], i);
    if (!problems.empty()) problems.finish();  // of a million events one bad one is enough
  }
  return parser.finish();
}

}  // namespace piper::report
