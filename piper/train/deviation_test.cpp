#include <doctest/doctest.h>
#include <piper/model/import.h>
#include <piper/sim/simulate.h>
#include <piper/train/deviation.h>

#include <string>
#include <vector>

namespace piper::train {
namespace {

schedule::StepGraph small_step() {
  static const model::Model model = model::load_model("piper-10m");
  strategy::Strategy s;
  s.mesh = {.pp = 2, .ep = 1, .dp = 1};
  s.layers_per_stage = strategy::even_split(model.num_layers(), 2);
  s.sequence = 8;
  s.micro_batch_sequences = s.global_batch_sequences = s.num_micro_batches = 1;
  return schedule::write_step(model, s);
}

// Every task of `kind` takes `seconds`, the others one; those of a rank one after the other.
graph::Timeline timeline(const schedule::StepGraph& step, schedule::SegmentKind kind,
                         double seconds) {
  graph::Timeline t;
  std::vector<double> ends(static_cast<size_t>(step.graph.num_ranks()), 0);
  for (const graph::Task& task : step.graph.tasks()) {
    double& end = ends[task.rank.index()];
    const double begin = end;
    end += step.segment(task).kind == kind ? seconds : 1;
    t.tasks.push_back({begin, end});
  }
  return t;
}

}  // namespace

TEST_CASE("a run is said to leave the prediction once, with the component, and to come back once") {
  const schedule::StepGraph step = small_step();
  const graph::Timeline predicted = timeline(step, schedule::SegmentKind::kExperts, 1);
  const graph::Timeline slow = timeline(step, schedule::SegmentKind::kExperts, 3);
  DeviationWatch watch(step, predicted, /*predicted_seconds=*/10, /*bound=*/0.25);
  std::string said;
  int64_t lines = 0;
  const auto steps = [&](int64_t from, int64_t to, double seconds, const graph::Timeline& t) {
    for (int64_t i = from; i <= to; ++i)
      if (const auto line = watch.note(i, seconds, t)) said = *line, ++lines;
  };
  steps(1, 2, 100, slow);  // the first ones warm up
  steps(3, 12, 12, predicted);
  CHECK(lines == 0);
  steps(13, 14, 20, slow);  // two of five do not make the median
  CHECK(lines == 0);
  steps(15, 30, 20, slow);
  CHECK(lines == 1);
  CHECK(said.find("step 15: steps take") == 0);
  CHECK(said.find("+100 %") != std::string::npos);
  CHECK(said.find("experts") != std::string::npos);
  steps(31, 50, 10, predicted);
  CHECK(lines == 2);
  CHECK(said.find("within the bound again") != std::string::npos);
  steps(51, 70, 5, timeline(step, schedule::SegmentKind::kAttention, 0.25));
  CHECK(lines == 3);
  CHECK(said.find("attention") != std::string::npos);
}

TEST_CASE("a bound of 0 says nothing") {
  const schedule::StepGraph step = small_step();
  const graph::Timeline t = timeline(step, schedule::SegmentKind::kExperts, 3);
  DeviationWatch watch(step, t, 1, 0);
  for (int64_t i = 1; i < 20; ++i) CHECK_FALSE(watch.note(i, 100, t));
}

}  // namespace piper::train
