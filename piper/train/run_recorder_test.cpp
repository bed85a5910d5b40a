#include <doctest/doctest.h>
#include <piper/model/import.h>
#include <piper/strategy/strategy.h>
#include <piper/train/prediction.h>
#include <piper/train/run_recorder.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace piper::train {
namespace {

strategy::Strategy two_stages(int64_t num_micro_batches) {
  const model::Model& model = model::load_model("piper-10m");
  strategy::Strategy s;
  s.mesh = {.pp = 2, .ep = 2, .dp = 2};
  s.layers_per_stage = strategy::even_split(model.num_layers(), 2);
  s.sequence = 8;
  s.micro_batch_sequences = 1;
  s.num_micro_batches = num_micro_batches;
  s.global_batch_sequences = 2 * num_micro_batches;
  return s;
}

struct Recorded {
  model::Model model = model::load_model("piper-10m");
  strategy::Strategy strategy = two_stages(2);
  cluster::Cluster cluster;
  schedule::StepGraph step = schedule::write_step(model, strategy);
  RunRecorder recorder{step, strategy, cluster};

  // Step `number` of a run: its only task lasts as long as the step.
  void execute(int64_t number, double seconds) {
    recorder.timeline_of(number)->tasks.front() = {0, seconds};
    for (int64_t r = 0; r < strategy.mesh.world(); ++r)
      recorder.set_peak_bytes(number, Rank(r), number);
    recorder.record(number, seconds, {});
  }
};

}  // namespace

TEST_CASE(
    "the time, the timeline and the memory that a run reports are of one step, the median one") {
  // Steps become slower; more of them than are kept.
  for (const int64_t num_steps : {1, 2, 3, 17, 60, 1000}) {
    CAPTURE(num_steps);
    Recorded run;
    for (int64_t n = 1; n <= num_steps; ++n) run.execute(n, 1 + 0.001 * static_cast<double>(n));
    const Measurement measured = run.recorder.measurement();
    CHECK(measured.timeline.seconds() == doctest::Approx(measured.step_seconds));
    CHECK(measured.step_seconds == doctest::Approx(1 + 0.001 * static_cast<double>(measured.step)));
    CHECK(measured.peak_bytes.front() == measured.step);
    CHECK(measured.num_steps == num_steps);
    // The first two do not count where there are others.
    const int64_t first = num_steps > 2 ? 3 : 1, count = num_steps - first + 1;
    const int64_t median = first + count / 2;
    // Kept steps lie at most 2 * num_steps / most_kept() apart, so that one is half as near.
    const int64_t apart =
        num_steps <= run.recorder.most_kept() ? 0 : num_steps / run.recorder.most_kept() + 1;
    CHECK(std::abs(measured.step - median) <= apart);
  }
}

TEST_CASE("of two readings of a rank's peak the larger one counts") {
  Recorded run;
  run.recorder.set_peak_bytes(1, Rank(0), 100);
  run.recorder.set_peak_bytes(1, Rank(1), 100);
  run.recorder.set_peak_bytes(1, Rank(1), 40);  // after the other has begun again
  run.execute(1, 1);
  const Measurement measured = run.recorder.measurement();
  CHECK(measured.peak_bytes[0] == 100);
  CHECK(measured.peak_bytes[1] == 100);
}

TEST_CASE("processes that record different times keep the same steps") {
  Recorded first, other;
  for (int64_t n = 51; n <= 700; ++n) {
    first.execute(n, 1 + 0.1 * std::sin(static_cast<double>(n)));
    other.execute(n, 2);
  }
  const int64_t median = first.recorder.median_step();
  CHECK_NOTHROW(other.recorder.part_of(Rank(1), median));  // throws when it has been forgotten
}

TEST_CASE("the parts of a step add up to the step, though ranks communicate while they compute") {
  const Recorded run;
  graph::Timeline timeline;
  timeline.tasks.resize(run.step.graph.tasks().size());
  timeline.peak_bytes.assign(static_cast<size_t>(run.strategy.mesh.world()), 1);
  // On each rank segments one after the other, a second each; all else lasts from the start to
  // three seconds beyond.
  std::vector<double> ends(static_cast<size_t>(run.strategy.mesh.world()), 0);
  for (const graph::Task& task : run.step.graph.tasks())
    if (double& end = ends[task.rank.index()]; task.kind == graph::TaskKind::kCompute) {
      timeline.tasks[task.id.index()] = {end, end + 1};
      end += 1;
    }
  for (const graph::Task& task : run.step.graph.tasks())
    if (task.kind != graph::TaskKind::kCompute)
      timeline.tasks[task.id.index()] = {0, ends[task.rank.index()] + 3};
  const auto parts = seconds_by_component(run.step, timeline, Rank(0));
  double sum = 0, communication = 0;
  for (const auto& [name, seconds] : parts) {
    sum += seconds;
    if (name.find("exposed") != std::string::npos) communication += seconds;
  }
  CHECK(sum == doctest::Approx(ends[0] + 3));
  CHECK(communication == doctest::Approx(3));

  StepPrediction prediction;
  prediction.timeline = timeline;
  prediction.step_seconds = timeline.seconds();
  Measurement measured{.step = 1,
                       .num_steps = 1,
                       .timeline = timeline,
                       .step_seconds = timeline.seconds() + 0.5};  // between two steps
  measured.peak_bytes = measured.state_bytes = timeline.peak_bytes;
  cluster::Cluster cluster = cluster::load_cluster("frontier");
  const report::Comparison c =
      compare(run.step, run.model, run.strategy, cluster, prediction, measured);
  double predicted_parts = 0, measured_parts = 0;
  for (const report::TimeComponent& part : c.time_components) {
    predicted_parts += part.predicted_seconds.value_or(0);
    measured_parts += part.measured_seconds.value_or(0);
  }
  CHECK(predicted_parts == doctest::Approx(*c.predicted_step_seconds));
  CHECK(measured_parts == doctest::Approx(*c.measured_step_seconds));
}

}  // namespace piper::train
