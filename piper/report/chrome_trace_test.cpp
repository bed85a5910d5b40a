#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/report/chrome_trace.h>

#include <sstream>

using namespace piper;
using namespace piper::report;
using graph::Phase;
using graph::TaskKind;
using schedule::SegmentKind;

namespace {

// Two ranks, one micro-batch. Rank 0 runs attention and sends x; rank 1 receives it and runs a
// layer's experts, backward. Both then sum a gradient and update.
struct Sample {
  schedule::StepGraph step;
  graph::Timeline timeline;

  graph::SegmentId segment(SegmentKind kind, int32_t layer) {
    step.segments.push_back({kind, layer});
    return graph::SegmentId(static_cast<int64_t>(step.segments.size()) - 1);
  }
  void add(graph::NewTask task, double start_seconds, double end_seconds) {
    step.graph.add(std::move(task));
    timeline.tasks.push_back({start_seconds, end_seconds});
  }

  Sample() {
    step.graph = graph::Graph(2);
    step.slots = {{schedule::SlotKind::kHidden, {}}};
    const graph::SlotId sent = step.graph.add_slot({.rank = Rank(0), .shape = graph::SlotShape(0)});
    const graph::SlotId received =
        step.graph.add_slot({.rank = Rank(1), .shape = graph::SlotShape(0)});
    const graph::OperationId transfer = step.graph.new_operation();
    const graph::OperationId sum = step.graph.new_operation();
    const graph::GroupId both = step.graph.add_group({Rank(0), Rank(1)});
    add({.rank = Rank(0),
         .micro_batch = 0,
         .segment = segment(SegmentKind::kAttention, 0),
         .writes = {sent}},
        0, 0.5);
    add({.rank = Rank(0),
         .kind = TaskKind::kSend,
         .micro_batch = 0,
         .operation = transfer,
         .peer = Rank(1),
         .reads = {sent},
         .frees = {sent}},
        0.5, 0.75);
    add({.rank = Rank(1),
         .kind = TaskKind::kReceive,
         .micro_batch = 0,
         .operation = transfer,
         .peer = Rank(0),
         .writes = {received}},
        0.5, 0.75);
    add({.rank = Rank(1),
         .phase = Phase::kBackward,
         .micro_batch = 0,
         .segment = segment(SegmentKind::kExperts, 1),
         .reads = {received},
         .frees = {received}},
        0.75, 1.75);
    const graph::SegmentId gradients = segment(SegmentKind::kDenseGradients, 0);
    const graph::SegmentId optimizer = segment(SegmentKind::kOptimizer, -1);
    for (const Rank rank : {Rank(0), Rank(1)}) {
      add({.rank = rank,
           .kind = TaskKind::kAllReduce,
           .phase = Phase::kUpdate,
           .segment = gradients,
           .operation = sum,
           .group = both},
          1.75, 2);
      add({.rank = rank, .phase = Phase::kUpdate, .segment = optimizer}, 2, 2.25);
    }
    timeline.memory = {{{0, 100}, {0.5, 612}}, {}};
  }

  std::string text(const TraceDescription& description = {}) const {
    std::ostringstream out;
    write_chrome_trace(out, step, timeline, description);
    return out.str();
  }
};

Json event(const Json& trace, const std::string& kind, int64_t process, size_t which = 0) {
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] == kind && e["pid"] == process && which-- == 0) return e;
  }
  return nullptr;
}

size_t events_of_kind(const Json& trace, const std::string& kind) {
  size_t n = 0;
  for (const Json& e : trace["traceEvents"]) n += e["ph"] == kind;
  return n;
}

}  // namespace

TEST_CASE("a trace is one JSON document with a process a rank and a thread a stream") {
  const Sample sample;
  const Json trace =
      parse_json(sample.text({.title = "pre\"dicted", .stage_of_rank = {0, 1}}), "t");
  CHECK(trace["otherData"]["title"] == "pre\"dicted");
  CHECK(event(trace, "M", 1)["args"]["name"] == "rank 1 · stage 1");
  CHECK(event(trace, "M", 0, 2)["name"] == "thread_name");
  CHECK(event(trace, "M", 0, 2)["args"]["name"] == "compute");
  CHECK(events_of_kind(trace, "X") == 8);
}

TEST_CASE("an event carries time in microseconds, phase, kind, segment, layer and bytes") {
  const Sample sample;
  const Json trace = parse_json(sample.text({.bytes = {-1, 512, 512, -1, 64, -1, 64, -1}}), "t");
  CHECK(
      event(trace, "X", 1).dump() ==
      R"({"ph":"X","name":"B0 L1 experts","cat":"backward experts","pid":1,"tid":0,"ts":750000.0,)"
      R"("dur":1000000.0,"args":{"phase":"backward","kind":"compute","task":3,"micro_batch":0,)"
      R"("segment":"experts","layer":1}})");
  CHECK(event(trace, "X", 0, 3)["args"]["bytes"] == 512);  // the send, after compute and exchange
  CHECK(event(trace, "X", 0, 3)["tid"] == 2);
  CHECK_FALSE(event(trace, "X", 0)["args"].contains("bytes"));
}

TEST_CASE("an arrow leads from a send to its receive") {
  const Json trace = parse_json(Sample().text(), "t");
  const Json from = event(trace, "s", 0), to = event(trace, "f", 1);
  CHECK(from["id"] == to["id"]);
  CHECK(from["ts"] == 500000.0);
  CHECK(to["ts"].get<double>() < 750000.0);  // within the receive
  CHECK(to["ts"].get<double>() > 749999.0);
  CHECK(events_of_kind(trace, "s") == 1);
  CHECK(events_of_kind(trace, "f") == 1);
}

TEST_CASE("memory appears as a counter, and only where the timeline has it") {
  const Json trace = parse_json(Sample().text(), "t");
  CHECK(events_of_kind(trace, "C") == 2);
  CHECK(event(trace, "C", 0, 1).dump() ==
        R"({"ph":"C","name":"memory","pid":0,"ts":500000.0,"args":{"bytes":612}})");
}

TEST_CASE("tasks in flight together get lanes of their own, tasks that have not run are left out") {
  Sample sample;
  for (const double start : {0.0, 0.1, 0.6}) {
    sample.add({.rank = Rank(0),
                .kind = TaskKind::kReceive,
                .micro_batch = 1,
                .operation = sample.step.graph.new_operation(),
                .peer = Rank(1)},
               start, start + 0.5);
  }
  sample.add({.rank = Rank(0), .phase = Phase::kUpdate, .segment = graph::SegmentId(3)}, -1, -1);
  const Json trace = parse_json(sample.text(), "t");
  CHECK(events_of_kind(trace, "X") == 11);
  CHECK(event(trace, "X", 0, 4)["tid"] == 3);
  CHECK(event(trace, "X", 0, 5)["tid"] == 3 + graph::kNumStreams);
  CHECK(event(trace, "X", 0, 6)["tid"] == 3);  // the first lane is free again
  CHECK(sample.text().find("\"receive 2\"") != std::string::npos);
}

TEST_CASE("what is written reads back as the same chart") {
  const Sample sample;
  const Gantt made = make_gantt(sample.step, sample.timeline, {0, 1});
  const Gantt read =
      parse_chrome_trace(parse_json(sample.text({.stage_of_rank = {0, 1}}), "t"), "t");
  CHECK(read.seconds == doctest::Approx(2.25));
  CHECK(made.seconds == 2.25);
  REQUIRE(read.ranks.size() == 2);
  for (size_t r = 0; r < 2; ++r) {
    CHECK(read.ranks[r].label == made.ranks[r].label);
    CHECK(read.ranks[r].memory.size() == made.ranks[r].memory.size());
    REQUIRE(read.ranks[r].bars.size() == made.ranks[r].bars.size());
    for (size_t b = 0; b < made.ranks[r].bars.size(); ++b) {
      const Bar& before = made.ranks[r].bars[b];
      const Bar& after = read.ranks[r].bars[b];
      CHECK(after.name == before.name);
      CHECK(after.stream == before.stream);
      CHECK(after.lane == before.lane);
      CHECK(after.bar_class == before.bar_class);
      CHECK(after.start_seconds == doctest::Approx(before.start_seconds));
      CHECK(after.end_seconds == doctest::Approx(before.end_seconds));
    }
  }
  // Rank 0: attention 0.5 s and the update 0.25 s of 2.25 s.
  CHECK(Gantt::busy_share(made.ranks[0], made.seconds) == doctest::Approx(0.75 / 2.25));
}

TEST_CASE("a document that is no trace is refused, an event that is broken named") {
  CHECK_THROWS_WITH_AS(parse_chrome_trace(parse_json("{}", "t"), "t.json"),
                       "t.json: has no 'traceEvents': it is not a Chrome trace", InvalidInput);
  const auto bad =
      parse_json(R"({"traceEvents": [{"ph": "X", "name": "a", "cat": "cooking"}]})", "t");
  CHECK_THROWS_WITH_AS(
      parse_chrome_trace(bad, "t.json"),
      "t.json: 'traceEvents[0].cat' is 'cooking', which is no kind of task of a step",
      InvalidInput);
}

TEST_CASE("a file is written whole or not at all") {
  const Sample sample;
  const auto path = std::filesystem::temp_directory_path() / "piper_chrome_trace_test.json";
  write_chrome_trace_file(path, sample.step, sample.timeline);
  CHECK(read_text_file(path) == sample.text());
  CHECK_FALSE(std::filesystem::exists(path.string() + ".partial"));
  std::filesystem::remove(path);
  CHECK_THROWS_AS(write_chrome_trace_file("/nonexistent/t.json", sample.step, sample.timeline),
                  IoError);
}
