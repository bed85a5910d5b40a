#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/prices.h>
#include <piper/cost/segment_time.h>
#include <piper/model/import.h>
#include <piper/plan/question.h>
#include <piper/plan/screen.h>
#include <piper/plan/under_load.h>
#include <piper/sim/simulate.h>
#include <piper/strategy/runnable.h>
#include <testing/cost/example_model.h>
#include <tests/switches.h>

#include <algorithm>

namespace piper::plan {
namespace {

// A machine that is priced as this Piper trains there.
struct Machine {
  explicit Machine(int64_t num_devices = 16) {
    cluster.kind = "cpu";
    question = {.model = cost::example::mixture(4), .cluster = cluster, .num_devices = num_devices};
    question.sequence = 16;
    question.global_batch_sequences = 2 * num_devices;
    question.num_kept = 1 << 20;
    question.load = cost::LoadSamples{};  // balanced
  }
  Request request() { return resolve_defaults(question, trainer, defaults); }

  cluster::Cluster cluster = cost::example::nodes();
  cost::TrainerProfile trainer = cost::load_trainer("piper");
  Question question;
  std::vector<Default> defaults;
};

std::vector<cluster::Outside> asked(const cluster::Cluster& cluster, int64_t sequence) {
  const model::Model model = model::load_model("deepseek-v2-lite");
  strategy::Strategy s{.mesh = {.ep = 8, .dp = 8},
                       .precision = strategy::Precision::kBf16,
                       .sequence = sequence,
                       .global_batch_sequences = 8,
                       .micro_batch_sequences = 1,
                       .num_micro_batches = 1};
  s.layers_per_stage = {model.num_layers()};
  const cost::TrainerProfile trainer = cost::load_trainer("piper");
  return cost::make_estimator_of(s, model, cluster, trainer)->outside_measured({s}, 1);
}

bool has(const std::vector<cluster::Outside>& outside, const std::string& axis) {
  return std::ranges::any_of(outside, [&](const cluster::Outside& o) { return o.axis == axis; });
}

}  // namespace

TEST_CASE("a sequence beyond what attention was measured with is said, with its range") {
  const cluster::Cluster h100 = cluster::load_cluster("dgx-h100");
  CHECK_FALSE(has(asked(h100, 4096), "sequence"));
  const auto outside = asked(h100, 262'144);
  REQUIRE(has(outside, "sequence"));
  for (const cluster::Outside& o : outside)
    if (o.axis == "sequence") {
      CHECK(o.asked_high == 262'144);
      CHECK(o.measured_high < o.asked_high);
    }
}

TEST_CASE("where nothing was measured nothing is outside of it") {
  cluster::Cluster bare = cluster::load_cluster("dgx-h100");
  for (auto& [precision, compute] : bare.compute)
    compute.gemm = compute.attention = compute.attention_backward = {};
  CHECK(asked(bare, 262'144).empty());
}

TEST_CASE("GPUs that `piper profile` has measured are priced as this Piper trains on them") {
  Machine machine(8);
  machine.question.cluster.kind = "gpu";
  machine.question.precision = strategy::Precision::kFp32;
  CHECK(!machine.request().has_exact_costs());
  machine.question.cluster.numbers[cost::measured_over_priced_name(
      schedule::SegmentKind::kExperts, graph::Phase::kForward, strategy::Precision::kBf16)] = 1.1;
  const Request request = machine.request();
  CHECK(request.has_exact_costs());
  CHECK(request.fixed.runnable);
  CHECK(request.estimator()->is_exact());
  strategy::Strategy s = cost::example::strategy(machine.question.model, 1, 2, 8);
  s.precision = strategy::Precision::kFp32;
  const auto one =
      cost::make_estimator_of(s, machine.question.model, machine.question.cluster, machine.trainer);
  CHECK(one->estimate(s).seconds == request.estimator()->estimate(s).seconds);
}

// Whatever fits: everything, or only what recomputes, divides states or has them on the host.
TEST_CASE("screened shapes have what the search over all shapes finds") {
  for (const int64_t layers : {4, 8}) {
    Machine machine;
    machine.question.cluster.kind = "gpu";
    machine.question.cluster.numbers["measured_over_priced.experts.forward"] = 1.1;
    machine.question.model = cost::example::mixture(layers);
    for (model::Layer& layer : machine.question.model.layers) layer.feed_forward.ffn = 512;
    machine.question.sequence = 1024;
    machine.question.num_kept = 8;
    Request request = machine.request();
    REQUIRE(screens(request));
    double least = 0;
    for (const double part : {1.0, 0.5, 0.25}) {
      CAPTURE(layers);
      CAPTURE(part);
      request.most_unscreened_gpus = 1 << 20;
      request.memory_limit_bytes = part == 1 ? 1e18 : part * least;
      const Plan all = search(request);
      request.most_unscreened_gpus = 8;
      int64_t before = 0;
      request.progress = [&](int64_t done, int64_t total) {
        CHECK(done >= before);
        CHECK(done <= total);
        before = done;
      };
      const Plan few = search(request);
      request.progress = nullptr;
      CHECK(all.num_screened_out == 0);
      CHECK(few.num_shapes == all.num_shapes);
      CHECK(few.num_screened_out > all.num_shapes / 2);
      REQUIRE(!all.ranked.empty());
      REQUIRE(!few.ranked.empty());
      CAPTURE(describe(all.ranked.front().strategy));
      CAPTURE(describe(few.ranked.front().strategy));
      CHECK(few.ranked.front().estimate.seconds == all.ranked.front().estimate.seconds);
      // No family is lost.
      for (size_t i = 0; i < all.families.size(); ++i)
        CHECK(few.families[i].best.has_value() == all.families[i].best.has_value());
      if (part == 1) least = all.ranked.front().estimate.peak_bytes;
    }
  }
}

TEST_CASE("the best shapes of all are searched, and a few of each family") {
  std::vector<ShapeScore> scores(100);
  for (size_t i = 0; i < scores.size(); ++i)
    scores[i] = {.shape = i, .family = Family::kPipeline, .bytes = 1000 - static_cast<double>(i)};
  std::vector<size_t> taken = screened(scores);  // nothing fits: the smallest
  REQUIRE(taken.size() == kMostScreened);
  CHECK(taken.front() == 99);
  CHECK(taken.back() == 36);
  scores[50].seconds = 2;
  scores[51].seconds = 1;
  scores.push_back({.shape = 51, .family = Family::kFullySharded, .seconds = 3, .bytes = 1});
  scores.push_back({.shape = 7, .family = Family::kFullySharded, .bytes = 2000});
  taken = screened(scores);
  REQUIRE(taken.size() == kMostScreened + 1);
  CHECK((std::vector(taken.begin(), taken.begin() + 3) == std::vector<size_t>{51, 50, 99}));
  CHECK(taken.back() == 7);
}

TEST_CASE("an order of mixture layers that few shapes allow is found among many") {
  Machine machine;
  machine.question.cluster.kind = "gpu";
  machine.question.cluster.numbers["measured_over_priced.experts.forward"] = 1.1;
  machine.question.fixed.moe_schedule = strategy::MoeSchedule::kParmBaseline;
  // It wants experts' matrices that ranks share: on such links the slowest of shapes.
  for (cluster::Level& level : machine.question.cluster.levels) {
    level.link.latency_seconds *= 100;
    level.link.bytes_per_second /= 100;
    level.nic_bytes_per_second /= 100;
  }
  machine.question.sequence = 1024;
  machine.question.global_batch_sequences = 256;
  machine.question.num_kept = 8;
  Request request = machine.request();
  REQUIRE(screens(request));
  const Plan few = search(request);
  request.most_unscreened_gpus = 1 << 20;
  const Plan all = search(request);
  REQUIRE(!few.ranked.empty());
  CHECK(few.ranked.front().strategy.moe_schedule == strategy::MoeSchedule::kParmBaseline);
  CHECK(few.ranked.front().estimate.seconds == all.ranked.front().estimate.seconds);
  for (size_t i = 0; i < all.families.size(); ++i)
    CHECK(few.families[i].best.has_value() == all.families[i].best.has_value());
}

// The three machines are CPUs that share cores, GPUs, and GPUs whose gradient sums take longest.
TEST_CASE("pruning by lower bounds of exact costs loses nothing") {
  int num_start_otherwise = 0;
  for (const auto& [is_gpu, slower] : {std::pair{false, 1}, {true, 1}, {true, 50}}) {
    CAPTURE(slower);
    Machine machine(testing::full_counts() ? 8 : 4);
    if (is_gpu) {
      machine.question.cluster.kind = "gpu";
      machine.question.cluster.numbers["measured_over_priced.experts.forward"] = 1.1;
    } else {
      machine.question.cluster.cores_per_node = 2;
    }
    for (cluster::Level& level : machine.question.cluster.levels) {
      level.link.bytes_per_second /= slower;
      level.nic_bytes_per_second /= slower;
    }
    machine.question.precision = strategy::Precision::kFp32;
    machine.question.num_kept = 20;
    Request request = machine.request();
    REQUIRE(request.has_exact_costs());
    const double peak_of_best = search(request).pareto.front().estimate.peak_bytes;
    for (const double part : {1.0, 0.4}) {
      if (part == 1 && is_gpu && !testing::full_counts()) continue;
      CAPTURE(is_gpu);
      CAPTURE(part);
      request.prunes = true;
      // Some do not fit then.
      request.memory_limit_bytes = part * peak_of_best;
      const Plan again = search(request);
      request.prunes = false;
      const Plan plain = search(request);
      CHECK(again.num_timed < plain.num_timed / 2);
      REQUIRE(again.ranked.size() == plain.ranked.size());
      for (size_t i = 0; i < plain.ranked.size(); ++i)
        CHECK(to_json(again.ranked[i].strategy) == to_json(plain.ranked[i].strategy));
      for (size_t i = 0; i < plain.families.size(); ++i) {
        CAPTURE(std::string(name(plain.families[i].family)));
        const FamilyBest &one = again.families[i], &other = plain.families[i];
        REQUIRE(one.best.has_value() == other.best.has_value());
        REQUIRE(one.smallest.has_value() == other.smallest.has_value());
        if (one.smallest)
          CHECK(one.smallest->estimate.peak_bytes == other.smallest->estimate.peak_bytes);
        if (!one.best) continue;
        CAPTURE(describe(one.best->strategy));
        CAPTURE(describe(other.best->strategy));
        CHECK(one.best->estimate.seconds == other.best->estimate.seconds);
      }
      REQUIRE(again.schedules.size() == plain.schedules.size());
      for (size_t i = 0; i < plain.schedules.size(); ++i)
        CHECK(again.schedules[i].estimate.seconds == plain.schedules[i].estimate.seconds);
    }
    // The lower bounds hold for everything that is tried: nothing is pruned, everything fits.
    request.prunes = false;
    request.num_kept = 1 << 20;
    request.memory_limit_bytes = 1e18;
    const std::unique_ptr<cost::Estimator> estimator = request.estimator();
    int number = 0;
    for (const Candidate& c : search(request).ranked) {
      CAPTURE(describe(c.strategy));
      CHECK(estimator->bound_of_split(c.strategy, 1) <= c.estimate.seconds * (1 + 1e-9));
      // Whichever way its sums of gradients start: the search asks of those that are ready.
      strategy::Strategy ready = c.strategy;
      ready.reduction_start = strategy::ReductionStart::kReady;
      num_start_otherwise += c.strategy.reduction_start == ready.reduction_start ? 0 : 1;
      CHECK(estimator->least_seconds(ready, 1) <= c.estimate.seconds);
      const double peak = c.estimate.peak_bytes;
      CHECK(estimator->least_bytes(c.strategy, 1) <= peak);
      if (++number % 11 != 0) continue;
      // Each is asked anew, not known from the one before.
      const auto forget = [&] {
        strategy::Strategy other = c.strategy;
        other.num_micro_batches *= 2;
        other.global_batch_sequences *= 2;
        estimator->bytes(other);
      };
      CHECK(estimator->bytes(c.strategy, 1, peak).peak_bytes == peak);
      forget();
      const double above = estimator->bytes(c.strategy, 1, 0.999 * peak).peak_bytes;
      CHECK(above > 0.999 * peak);
      CHECK(above <= peak);
      strategy::Strategy elsewhere = c.strategy;
      elsewhere.placement = c.strategy.placement == strategy::Placement::kDataInside
                                ? strategy::Placement::kPipelineInside
                                : strategy::Placement::kDataInside;
      forget();
      CHECK(estimator->bytes(elsewhere).peak_bytes == peak);
      // Where all fit, none is tried with more on the host.
      for (const strategy::Offload offload : strategy::kOffloads) {
        strategy::Strategy offloaded = c.strategy;
        offloaded.offload = offload;
        CAPTURE(std::string(strategy::name(offload)));
        CHECK(estimator->least_bytes(offloaded, 1) <= estimator->bytes(offloaded).peak_bytes);
      }
    }
  }
  CHECK(num_start_otherwise > 0);
}

TEST_CASE("where costs are exact, a search prices with them, and simulates what is trained") {
  Machine machine(testing::full_counts() ? 16 : 8);
  const Request request = machine.request();
  REQUIRE(request.has_exact_costs());
  CHECK(request.fixed.runnable);
  Plan plan = search(request);
  REQUIRE(plan.ranked.size() > 20);
  cost::ExecutorEstimator executor(machine.question.model, machine.cluster, request.precision, 16);
  // Every eleventh in short: no multiple of what the search walks through in turn.
  const size_t every = testing::full_counts() ? 1 : 11;
  for (size_t i = 0; i < plan.ranked.size(); i += every) {
    const Candidate& c = plan.ranked[i];
    CHECK(strategy::not_runnable(c.strategy).empty());
    const cost::ExactEstimate e = executor.exact(c.strategy);
    CHECK(c.estimate.seconds == e.seconds);
    CHECK(c.estimate.time.total() == doctest::Approx(e.seconds));
    CHECK(c.estimate.peak_bytes == static_cast<double>(e.peak_bytes));
    CHECK(c.estimate.fullest.total() == doctest::Approx(c.estimate.peak_bytes));
    REQUIRE(c.estimate.exact);
  }
  CHECK(std::ranges::is_sorted(plan.ranked, {}, &Candidate::step_seconds));
  // Simulations of a step are those of the graph that is trained.
  simulate_ranked(request, plan, 3);
  for (size_t i = 0; i < 3; ++i) {
    const Candidate& c = plan.ranked[i];
    const schedule::StepGraph step = schedule::write_step(machine.question.model, c.strategy);
    const double simulated =
        sim::simulate(step, cost::price(step, machine.question.model, c.strategy, machine.cluster))
            .seconds();
    CHECK(c.simulated_seconds == doctest::Approx(simulated).epsilon(1e-9));
  }
}

TEST_CASE("an imbalance slows where experts are divided, and a load is drawn for each sample") {
  Machine machine;
  const std::unique_ptr<cost::Estimator> estimator = machine.request().estimator();
  strategy::Strategy s = cost::example::strategy(machine.question.model, 1, 4, 4);
  const double even = estimator->estimate(s).seconds;
  CHECK(estimator->estimate(s, 2).seconds > even);
  CHECK(estimator->estimate(s, 3).seconds > estimator->estimate(s, 2).seconds);
  const cost::LoadSamples samples{.load = cost::parse_load("zipf:1"), .num_samples = 4, .seed = 3};
  const cost::SampledEstimate sampled =
      estimator->sampled(s, sampled_loads(samples, machine.question.model, s.mesh.ep));
  REQUIRE(sampled.seconds.size() == 4);
  for (int64_t i = 0; i < 4; ++i) {
    const cost::ExpertLoad load =
        cost::sample_load(samples.load, machine.question.model, 4, 3, i, 4);
    cost::ExecutorEstimator loaded(machine.question.model, machine.cluster, s.precision, s.sequence,
                                   &load);
    CHECK(sampled.seconds[static_cast<size_t>(i)] == loaded.estimate(s).seconds);
  }
  s.mesh.ep = 1;
  CHECK(estimator->estimate(s, 2).seconds == estimator->estimate(s).seconds);
}

TEST_CASE("under a load the answer is ordered by the statistic asked for") {
  Machine machine(testing::full_counts() ? 16 : 8);
  for (const auto statistic :
       {cost::Statistic::kP95, cost::Statistic::kMean, cost::Statistic::kWorst}) {
    if (statistic != cost::Statistic::kP95 && !testing::full_counts()) continue;
    Request request = machine.request();
    const cost::LoadSamples samples{
        .load = cost::parse_load("zipf:0.4"), .statistic = statistic, .num_samples = 6};
    const Imbalances drawn = sampled_imbalances(request, samples, {1, 2, 4});
    request.imbalance_by_ep = statistic_of(drawn, statistic);
    Plan plan = search(request);
    simulate_under_load(request, samples, 8, plan);
    double before = 0;
    for (size_t i = 0; i < 8; ++i) {
      REQUIRE(plan.ranked[i].under_load);
      const double seconds = cost::value(plan.ranked[i].under_load->seconds, statistic);
      CHECK(seconds >= before);
      before = seconds;
    }
  }
}

TEST_CASE("no trainer but this Piper's own runs on machines with exact costs") {
  Machine machine;
  machine.trainer = cost::load_trainer("megatron");
  CHECK_THROWS_WITH_AS(machine.request(), doctest::Contains("--trainer is megatron"), InvalidInput);
}

}  // namespace piper::plan
