#include <doctest/doctest.h>
#include <piper/profile/reference_layers.h>
#include <piper/train/run.h>
#include <piper/train/run_recorder.h>
#include <piper/train/speed_check.h>
#include <testing/cost/example_model.h>
#include <tests/test_folder.h>

#include <thread>
#include <vector>

namespace piper::train {
namespace {

constexpr auto kPrecision = strategy::Precision::kFp32;

cluster::Cluster profiled(double pass_seconds) {
  cluster::Cluster cluster = cost::example::nodes();
  cluster.numbers[profile::reference_pass_name(kPrecision)] = pass_seconds;
  return cluster;
}

}  // namespace

TEST_CASE("a machine is compared with its profile, and one that has none with nothing") {
  executor::Cores cores = executor::cores_for(executor::num_host_cores(), 2);
  SpeedCheck unknown(cost::example::nodes(), kPrecision, 2);
  CHECK_FALSE(unknown.possible());
  unknown.measure(Rank(0), cores);
  CHECK(unknown.slowdowns().empty());

  SpeedCheck check(profiled(1e-6), kPrecision, 2);  // no machine is as fast as that
  CHECK(check.possible());
  CHECK(check.slowdowns().empty());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      for (int window = 0; window < 2; ++window) check.measure(Rank(rank), cores);
    });
  for (std::thread& rank : ranks) rank.join();
  REQUIRE(check.slowdowns().size() == 1);
  CHECK(check.slowdowns()[0] > 10);
}

TEST_CASE("of a step the windows around it count, of a window the mean of all processes' ranks") {
  const auto part = [](std::vector<double> seconds) {
    return std::string(reinterpret_cast<const char*>(seconds.data()),
                       seconds.size() * sizeof(double));
  };
  SpeedCheck check(profiled(0.5), kPrecision, 2);
  check.add_part(Rank(0), part({0.5, 0.6, 9}));
  check.add_part(Rank(1), part({0.5, 0.8, 9}));
  REQUIRE(check.slowdowns().size() == 2);
  CHECK(check.slowdowns()[0] == doctest::Approx(1.2));
  CHECK(check.slowdowns()[1] == doctest::Approx(9.7));
  SpeedCheck other(profiled(0.5), kPrecision, 2);
  for (const Rank rank : {Rank(0), Rank(1)}) other.add_part(rank, check.part_of(rank));
  CHECK(other.slowdowns() == check.slowdowns());
}

TEST_CASE("a prediction for a machine that computes at half its speed takes twice the compute") {
  const model::Model model = cost::example::mixture(2);
  const strategy::Strategy s = cost::example::strategy(model, 1, 1, 1, 2);
  const schedule::StepGraph step = checked_step(model, s);
  const cluster::Cluster cluster = cost::example::nodes();
  const double plain = predict(step, model, s, cluster).step_seconds;
  CHECK(predict(step, model, s, cluster, {}, 2).step_seconds == doctest::Approx(2 * plain));

  const strategy::Strategy ranks = cost::example::strategy(model, 2, 2, 2, 2);
  const schedule::StepGraph shared = checked_step(model, ranks);
  const StepPrediction one = predict(shared, model, ranks, cluster),
                       two = predict(shared, model, ranks, cluster, {}, 2);
  CHECK(two.step_seconds > one.step_seconds);
  CHECK(two.step_seconds < 2 * one.step_seconds);  // messages take what they took
  CHECK(two.mfu < one.mfu);
}

TEST_CASE("the median step is the median at one speed of the machine, not the one of an hour") {
  const model::Model model = cost::example::mixture(2);
  const strategy::Strategy s = cost::example::strategy(model, 1, 1, 1, 1);
  const schedule::StepGraph step = checked_step(model, s);
  RunRecorder recorder(step, s, cost::example::nodes());
  // Steps 3 to 5 count; the machine halves its speed after the third.
  const double seconds[] = {9, 9, 1.0, 2.2, 2.4};
  for (int64_t number = 1; number <= 5; ++number) {
    recorder.timeline_of(number);
    recorder.record(number, seconds[number - 1], {});
  }
  CHECK(recorder.median_step() == 4);
  CHECK(recorder.slowdown_of(3) == 1);
  recorder.set_slowdowns(1, {1, 1, 0.8, 2, 2});  // 1.25, 1.1, 1.2
  CHECK(recorder.median_step() == 5);
  CHECK(recorder.slowdown_of(5) == 2);
}

TEST_CASE("a run says how much slower than its profile the machine was, and counts it") {
  const piper::testing::TestFolder folder;
  RunRequest r;
  r.model = cost::example::mixture(2);
  r.model.vocabulary = 256;
  r.strategy = cost::example::strategy(r.model, 1, 2, 2, 2);
  r.cluster = profiled(1e-6);
  r.corpus = data::Corpus(data::Text(std::string(4000, 'x'), "text"));
  r.folder = folder.path() / "run";
  r.num_steps = 3;
  r.deviation_bound = 0;
  r.speed_check = true;
  const report::Comparison checked = run_training(r).comparison;
  CHECK(checked.machine_slowdown.value_or(0) > 10);
  r.speed_check = false;
  const report::Comparison unchecked = run_training(r).comparison;
  CHECK_FALSE(unchecked.machine_slowdown.has_value());
  CHECK(*checked.predicted_step_seconds > 5 * *unchecked.predicted_step_seconds);
}

}  // namespace piper::train
