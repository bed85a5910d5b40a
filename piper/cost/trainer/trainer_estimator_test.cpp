// What must hold of every strategy, whatever it is: 200 random ones.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cost/rank_parameters.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/model/import.h>
#include <testing/cost/strategy_draw.h>

using namespace piper;
using namespace piper::cost;
using strategy::Recompute;
using strategy::Strategy;

namespace {

constexpr int kStrategies = 200;
constexpr int64_t kSequence = 4096;
constexpr double kRounding = 1e-9;  // relative

using example::words;

uint64_t seed() { return example::seed_or(20261121); }

const example::DrawnFrom kDrawnFrom{.tp = {1, 2, 4},
                                    .cp = {1, 1, 2},
                                    .dp = {1, 2, 4, 8},
                                    .ep = {1, 2, 4, 8},
                                    .micro_batch_sequences = {1, 2, 3},
                                    .num_micro_batches = {1, 2, 7, 16, 32},
                                    .moe_schedules = true};

// Mixtral on H100 nodes under the default trainer: a model with experts that every axis divides.
struct EstimatorWorld {
  model::Model model = model::load_model("mixtral-8x7b");
  cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  TrainerProfile trainer = load_trainer("piper");

  TrainerEstimator estimator() const { return on(cluster); }
  TrainerEstimator on(const cluster::Cluster& other) const {
    return {model, other, trainer, strategy::Precision::kBf16, kSequence};
  }
  // Calls check(strategy) for each random strategy; the seed and the strategy stand in a failure's
  // message.
  void for_each(auto check) const {
    MESSAGE("seed ", seed());
    example::StrategyDraw draw(kDrawnFrom, seed());
    for (int i = 0; i < kStrategies; ++i) {
      const Strategy s = draw.strategy(model, [](const Strategy&) { return true; });
      const std::string what = words(s);
      CAPTURE(what);
      check(s);
    }
  }
};

}  // namespace

TEST_CASE("bytes alone are those of the estimate") {
  const EstimatorWorld w;
  TrainerEstimator estimator = w.estimator(), other = w.estimator();
  w.for_each([&](const Strategy& s) {
    const Estimate alone = estimator.bytes(s), whole = other.estimate(s);
    CHECK(alone.peak_bytes == whole.peak_bytes);
    CHECK(alone.states_bytes == whole.states_bytes);
    CHECK(alone.fullest_stage == whole.fullest_stage);
    CHECK(alone.fullest.exchange == whole.fullest.exchange);
    CHECK(alone.fullest.total() == alone.peak_bytes);
    CHECK(alone.seconds == 0);
  });
}

TEST_CASE("an estimate does not depend on what was asked before") {
  const EstimatorWorld w;
  for (const int64_t zero : {0, 1, 2, 3})
    for (const auto first : strategy::kPipelineSchedules)
      for (const auto then : strategy::kPipelineSchedules) {
        const auto chunks = [](strategy::PipelineSchedule schedule) -> int64_t {
          return strategy::is_v(schedule) || strategy::interleaves(schedule) ? 2 : 1;
        };
        Strategy s{.precision = strategy::Precision::kBf16, .sequence = kSequence};
        s.mesh = {.pp = 4, .ep = 4, .dp = 8};
        s.zero = zero;
        s.num_micro_batches = 8;
        s.micro_batch_sequences = 1;
        s.global_batch_sequences = 64;
        const auto with = [&](strategy::PipelineSchedule schedule) {
          Strategy one = s;
          one.schedule = schedule;
          one.mesh.vpp = chunks(schedule);
          one.layers_per_stage =
              strategy::even_split(w.model.num_layers(), one.mesh.num_virtual_stages());
          return one;
        };
        CAPTURE(strategy::name(first));
        CAPTURE(strategy::name(then));
        TrainerEstimator used = w.estimator(), fresh = w.estimator();
        used.estimate(with(first));
        CHECK(used.estimate(with(then)).seconds == fresh.estimate(with(then)).seconds);
      }
}

TEST_CASE("a step is the sum of its parts, none negative, and no less than its bound") {
  const EstimatorWorld w;
  TrainerEstimator estimator = w.estimator();
  w.for_each([&](const Strategy& s) {
    const Estimate e = estimator.estimate(s);
    double sum = 0;
    for (const double part :
         {e.time.compute, e.time.recompute, e.time.tensor, e.time.exchange, e.time.context,
          e.time.messages, e.time.bubble, e.time.reductions, e.time.update, e.time.offload}) {
      CHECK(part >= -kRounding * e.seconds);
      sum += part;
    }
    CHECK(sum == doctest::Approx(e.seconds).epsilon(kRounding));
    CHECK(e.seconds >= estimator.bound(s) * (1 - kRounding));
    const StageBytes& b = e.fullest;
    CHECK(b.weights_and_gradients + b.optimizer + b.activations + b.working + b.exchange +
              b.fixed ==
          doctest::Approx(e.peak_bytes).epsilon(kRounding));
    CHECK(b.weights_and_gradients + b.optimizer <= e.states_bytes * (1 + kRounding));
  });
}

TEST_CASE(
    "what is not worth simulating takes no less than is said, and what it is said to take is no "
    "less") {
  const EstimatorWorld w;
  TrainerEstimator estimator = w.estimator();
  int num_coarse = 0;
  w.for_each([&](const Strategy& s) {
    const Estimate fine = estimator.estimate(s);
    CHECK(!fine.is_coarse);
    CHECK(fine.at_least == fine.seconds);
    for (const double part : {0.3, 0.8, 0.9, 0.95, 0.99, 0.999999, 1.000001}) {
      const double worth = part * fine.seconds;
      const Estimate e = estimator.estimate(s, 1, worth);
      CHECK(e.peak_bytes == fine.peak_bytes);
      if (!e.is_coarse) {
        CHECK(e.seconds == fine.seconds);
        continue;
      }
      ++num_coarse;
      CHECK(e.at_least > worth);
      CHECK(e.at_least <= fine.seconds * (1 + kRounding));
      CHECK(e.seconds >= e.at_least * (1 - kRounding));
      CHECK(e.time.total() == doctest::Approx(e.seconds).epsilon(kRounding));
    }
    const Estimate too_large =
        estimator.estimate(s, 1, std::numeric_limits<double>::infinity(), 0.9 * fine.peak_bytes);
    CHECK(too_large.peak_bytes == fine.peak_bytes);
    CHECK(too_large.at_least <= fine.seconds * (1 + kRounding));
  });
  CHECK(num_coarse >= 50);
}

TEST_CASE("more bandwidth is never slower") {
  const EstimatorWorld w;
  cluster::Cluster faster = w.cluster;
  for (cluster::Level& level : faster.levels) {
    level.link.bytes_per_second *= 1.7;
    level.nic_bytes_per_second *= 1.7;
  }
  for (auto& [name, value] : faster.numbers)
    if (name == "ring_bytes_per_second") value *= 1.7;
  TrainerEstimator slow = w.estimator(), fast = w.on(faster);
  w.for_each([&](const Strategy& s) {
    CHECK(fast.estimate(s).seconds <= slow.estimate(s).seconds * (1 + kRounding));
  });
}

// What is ready sooner may meet a transfer that it used to miss (Graham 1969): copies to the host
// and back on one link, and under DualPipeV the gathers of ZeRO 3 and another micro-batch's
// exchanges.
bool may_meet(const Strategy& s) {
  return strategy::offloads_activations(s.offload) || (strategy::pairs(s.schedule) && s.zero == 3);
}

TEST_CASE("less latency is never slower, but for transfers that meet by 1 %") {
  const EstimatorWorld w;
  cluster::Cluster quicker = w.cluster;
  for (cluster::Level& level : quicker.levels) level.link.latency_seconds /= 3;
  TrainerEstimator slow = w.estimator(), fast = w.on(quicker);
  w.for_each([&](const Strategy& s) {
    const double more = may_meet(s) ? 0.01 : kRounding;
    CHECK(fast.estimate(s).seconds <= slow.estimate(s).seconds * (1 + more));
  });
}

TEST_CASE("a higher compute efficiency is never slower, but for transfers that meet by 1 %") {
  const EstimatorWorld w;
  TrainerEstimator slow = w.estimator(), fast = w.estimator();
  slow.set_compute_efficiency(0.6);
  fast.set_compute_efficiency(0.7);
  w.for_each([&](const Strategy& s) {
    const double more = may_meet(s) ? 0.01 : kRounding;
    CHECK(fast.estimate(s).seconds <= slow.estimate(s).seconds * (1 + more));
  });
}

TEST_CASE("full recomputation never takes less time than none, and never more memory") {
  const EstimatorWorld w;
  TrainerEstimator estimator = w.estimator();
  w.for_each([&](Strategy s) {
    s.recompute = Recompute::kNone;
    const Estimate none = estimator.estimate(s);
    s.recompute = Recompute::kFull;
    const Estimate full = estimator.estimate(s);
    CHECK(full.peak_bytes <= none.peak_bytes * (1 + kRounding));
    // Fewer bytes to copy to the host may well be worth it.
    if (!strategy::offloads_activations(s.offload))
      CHECK(full.seconds >= none.seconds * (1 - kRounding));
    CHECK(full.time.recompute > 0);
  });
}

TEST_CASE(
    "dividing the optimizer's states costs by layer and replica, and nothing where they are "
    "whole") {
  EstimatorWorld w;
  Strategy s = example::StrategyDraw(kDrawnFrom, 1).strategy(w.model, [](const Strategy& of) {
    return of.mesh.pp == 1 && of.mesh.dp == 8 && of.mesh.cp == 1;
  });
  const auto update = [&](int zero) {
    s.zero = zero;
    TrainerEstimator estimator = w.estimator();
    CHECK(estimator.parts(s, 1).stages.front().update_seconds == estimator.estimate(s).time.update);
    return estimator.estimate(s).time.update;
  };
  const double whole = update(0), divided = update(1);
  w.trainer.division_seconds_per_replica = 1e-3;
  CHECK(update(0) == whole);
  CHECK(update(1) == doctest::Approx(divided + 1e-3 * 8 * 32));  // Mixtral's layers
  w.trainer.division_seconds_per_replica = 0;
  w.trainer.division_bytes = 28;
  CHECK(update(0) == whole);
  CHECK(update(1) > divided);
}

TEST_CASE("each stage of ZeRO holds no more state than the one before") {
  const EstimatorWorld w;
  TrainerEstimator estimator = w.estimator();
  w.for_each([&](Strategy s) {
    double before = 0;
    for (s.zero = 0; s.zero <= 3; ++s.zero) {
      const double states = estimator.estimate(s).states_bytes;
      if (s.zero > 0) CHECK(states <= before * (1 + kRounding));
      before = states;
    }
  });
}

TEST_CASE("twice the tensor parallelism needs less memory") {
  const EstimatorWorld w;
  TrainerEstimator estimator = w.estimator();
  w.for_each([&](Strategy s) {
    s.sequence_parallel = false;
    const double before = estimator.estimate(s).peak_bytes;
    s.mesh.tp *= 2;
    if (!strategy::contradictions(s, w.model).empty()) return;
    CHECK(estimator.estimate(s).peak_bytes < before);
  });
}

TEST_CASE("copies of experts have no price by a trainer's profile, and say so") {
  const EstimatorWorld world;
  Strategy s =
      example::StrategyDraw(kDrawnFrom, 1).strategy(world.model, [](const Strategy& drawn) {
        return drawn.mesh.ep > 1;
      });
  s.redundant_experts = s.mesh.ep;
  TrainerEstimator estimator = world.estimator();
  CHECK_THROWS_WITH_AS(estimator.estimate(s),
                       doctest::Contains("copies of experts have a price where piper runs on a "
                                         "machine that piper profile has measured"),
                       InvalidInput);
}

TEST_CASE("a stage has as many parameters as its layers and ends are counted to, one by one") {
  // These built-ins differ in the shapes that a stage counts; ep divides the experts by two.
  const cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  const TrainerProfile trainer = load_trainer("megatron");
  std::vector<model::Model> models;
  for (const char* name : {"mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite", "m10b-e16"})
    models.push_back(model::load_model(name));
  models.push_back(models.front());
  models.back().tied_embeddings = true;
  models.back().norm_has_bias = models.back().lm_head_bias = true;
  models.back().learned_positions = 77;
  for (const model::Model& model : models) {
    CAPTURE(model.name);
    strategy::Strategy s{.mesh = {.pp = 4, .ep = 2, .dp = 2},
                         .precision = strategy::Precision::kBf16,
                         .sequence = 64,
                         .global_batch_sequences = 8,
                         .micro_batch_sequences = 1,
                         .num_micro_batches = 4};
    s.layers_per_stage = strategy::even_split(model.num_layers(), 4);
    TrainerEstimator estimator(model, cluster, trainer, s.precision, s.sequence);
    const StepParts parts = estimator.parts(s, 1);
    for (int64_t stage = 0; stage < 4; ++stage) {
      CAPTURE(stage);
      const RankParameters held = rank_parameters(model, s, stage);
      int64_t biases = 0;  // of selection, which no trainer updates
      const int64_t first = strategy::first_layer(s, stage);
      for (int64_t i = 0; i < s.layers_per_stage[static_cast<size_t>(stage)]; ++i)
        if (const model::FeedForward& f = model.layers[static_cast<size_t>(first + i)].feed_forward;
            f.is_moe() && f.selection_bias && !f.selection_bias_is_parameter)
          biases += f.num_experts;
      const StagePart& part = parts.stages[static_cast<size_t>(stage)];
      CHECK(part.dense_parameters == static_cast<double>(held.dense - biases));
      CHECK(part.expert_parameters == static_cast<double>(held.experts));
    }
  }
}
