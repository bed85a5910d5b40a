// Whole steps of any axes (cost/trainer/priced_step.h), simulated: the closed form of
// cost::TrainerEstimator against what comes out.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/cost/trainer/priced_step.h>
#include <piper/model/import.h>
#include <piper/sim/simulate.h>
#include <piper/sim/symmetry.h>
#include <piper/strategy/rank_layout.h>
#include <testing/cost/strategy_draw.h>

#include <algorithm>
#include <map>

using namespace piper;
using strategy::Strategy;

namespace {

using cost::example::words;

uint64_t seed() { return cost::example::seed_or(20261122); }

class Draw : public cost::example::StrategyDraw {
 public:
  explicit Draw(uint64_t seed, bool moe_schedules = false)
      : StrategyDraw({.tp = {1, 2, 4, 8},
                      .cp = {1, 1, 2, 4},
                      .dp = {1, 2, 4, 8, 16, 32},
                      .ep = {1, 2, 4, 8, 32},
                      .micro_batch_sequences = {1, 2},
                      .num_micro_batches = {2, 3, 4, 8},
                      .micro_batches_times_pp = true,
                      .moe_schedules = moe_schedules},
                     seed) {}

  // On at most 1024 devices, and fits.
  Strategy strategy(cost::TrainerEstimator& estimator) {
    return StrategyDraw::strategy(estimator.model(), [&](const Strategy& s) {
      return s.mesh.world() <= 1024 && estimator.estimate(s).peak_bytes <=
                                           static_cast<double>(estimator.cluster().memory_bytes);
    });
  }
};

}  // namespace

namespace {

// 5 % is what is wanted of the worst. Under pairs up to 9 % were seen (docs/results.md): what pairs
// of micro-batches and ZeRO move at once, and other stages beside them, no formula follows.
struct Error {
  double size = 0;
  std::string of;
  double allowed = 0.05;
};

// Returns the mean error, and reports it with the median and the worst.
double stated(const std::string& what, std::vector<Error>& list) {
  std::ranges::sort(list, {}, &Error::size);
  double mean = 0;
  for (const Error& e : list) mean += e.size / static_cast<double>(list.size());
  MESSAGE(what, ": ", list.size(), ", mean ", mean, ", median ", list[list.size() / 2].size,
          ", worst ", list.back().of);
  return mean;
}

Error closed_form_error(cost::TrainerEstimator& estimator, const Strategy& s) {
  const cost::Estimate closed = estimator.estimate(s);
  const cost::PricedStep whole = cost::write_priced_step(
      estimator, s, strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0)));
  const double simulated = sim::simulate(whole.step, whole.prices, false).seconds();
  const double error = closed.seconds / simulated - 1;
  return {std::abs(error),
          fmt::format("{:+.1f} % {} on {}: {}", 100 * error, estimator.model().name,
                      estimator.cluster().name, words(s)),
          strategy::pairs(s.schedule) ? 0.1 : 0.05};
}

}  // namespace

TEST_CASE("closed form against the simulated step, 200 random strategies of every axis that fit") {
  MESSAGE("seed ", seed());
  Draw draw(seed());
  const cost::TrainerProfile trainer = cost::load_trainer("piper");
  std::vector<Error> errors, plain;
  for (int i = 0; i < 200; ++i) {
    const model::Model model = model::load_model(
        draw.one_of<std::string>({"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"}));
    const cluster::Cluster cluster =
        cluster::load_cluster(draw.one_of<std::string>({"dgx-h100", "frontier"}));
    cost::TrainerEstimator estimator(model, cluster, trainer, strategy::Precision::kBf16, 4096);
    const Strategy s = draw.strategy(estimator);
    errors.push_back(closed_form_error(estimator, s));
    if (!strategy::offloads_activations(s.offload)) plain.push_back(errors.back());
  }
  CHECK(stated("all", errors) <= 0.01);
  CHECK(stated("activations stay", plain) <= 0.01);
  for (const Error& e : errors) CHECK(e.size <= e.allowed);
}

TEST_CASE("closed form against the simulated step under every schedule of a mixture layer") {
  MESSAGE("seed ", seed());
  Draw draw(seed(), true);
  const cost::TrainerProfile trainer = cost::load_trainer("piper");
  std::map<strategy::MoeSchedule, std::vector<Error>> errors;
  for (int i = 0; i < 360; ++i) {
    const model::Model model =
        model::load_model(draw.one_of<std::string>({"mixtral-8x7b", "deepseek-v3"}));
    const cluster::Cluster cluster =
        cluster::load_cluster(draw.one_of<std::string>({"dgx-h100", "frontier"}));
    cost::TrainerEstimator estimator(model, cluster, trainer, strategy::Precision::kBf16, 4096);
    const Strategy s = draw.strategy(estimator);
    errors[s.moe_schedule].push_back(closed_form_error(estimator, s));
  }
  for (auto& [schedule, list] : errors) {
    CHECK(stated(strategy::name(schedule), list) <= 0.01);
    for (const Error& e : list) CHECK(e.size <= e.allowed);
  }
  CHECK(errors.size() == 8);
}

// What a search likes: stages balanced by their seconds, where a rank's chunks differ by two layers
// and every round waits.
TEST_CASE("interleaved chunks of unequal layers: closed form within 2 % of the simulated step") {
  const model::Model model = model::load_model("qwen3-30b-a3b");
  const cluster::Cluster cluster = cluster::load_cluster("frontier");
  const cost::TrainerProfile trainer = cost::load_trainer("piper");
  Strategy s{.precision = strategy::Precision::kBf16, .sequence = 4096};
  s.schedule = strategy::PipelineSchedule::kInterleaved;
  s.mesh = {.pp = 5, .ep = 8, .dp = 8};
  s.mesh.vpp = 4;
  s.layers_per_stage = {1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1};
  s.micro_batch_sequences = 1;
  cost::TrainerEstimator estimator(model, cluster, trainer, s.precision, s.sequence);
  for (const int64_t rounds : {2, 16}) {  // all of them simulated, and most at the pace of two
    s.num_micro_batches = rounds * s.mesh.pp;
    s.global_batch_sequences = s.mesh.dp * s.num_micro_batches;
    const cost::PricedStep whole = cost::write_priced_step(
        estimator, s, strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0)));
    const double simulated = sim::simulate(whole.step, whole.prices, false).seconds();
    CHECK(estimator.estimate(s).seconds == doctest::Approx(simulated).epsilon(0.02));
  }
}

TEST_CASE("a whole step is sound, cannot deadlock, and holds what the trainer's closed form says") {
  Draw draw(seed());
  const cost::TrainerProfile trainer = cost::load_trainer("piper");
  const model::Model model = model::load_model("mixtral-8x7b");
  const cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  cost::TrainerEstimator estimator(model, cluster, trainer, strategy::Precision::kBf16, 4096);
  for (int i = 0; i < 40; ++i) {
    Strategy s = draw.strategy(estimator);
    if (s.mesh.world() > 64) continue;
    const std::string what = words(s);
    CAPTURE(what);
    const cost::PricedStep whole = cost::write_priced_step(estimator, s);
    CHECK(fmt::format("{}", fmt::join(graph::validate(whole.step.graph), "\n")) == "");
    CHECK(graph::find_deadlock(whole.step.graph) == "");
    const graph::Timeline timeline = sim::simulate(whole.step, whole.prices, false);
    const auto peak = static_cast<double>(*std::ranges::max_element(timeline.peak_bytes));
    const double closed = estimator.estimate(s).peak_bytes;
    // How long copies to the host stay behind their forwards is a matter of speed: what is priced
    // is enough for any, of one chunk a rank.
    if (strategy::offloads_activations(s.offload)) {
      // With several chunks a rank the estimate uses means: with seed 3 it was 2.4 % too low, with
      // seed 1 11.6 % too high.
      if (s.mesh.vpp > 1) continue;
      CHECK(peak <= closed * (1 + 1e-6));
      CHECK(peak >= 0.9 * closed);
    } else {
      CHECK(peak == doctest::Approx(closed).epsilon(1e-6));
    }
  }
}

TEST_CASE("what this Piper's executor would run of any strategy is sound and cannot deadlock") {
  Draw draw(seed() + 2);
  const cost::TrainerProfile trainer = cost::load_trainer("piper");
  const model::Model model = model::load_model("deepseek-v3");  // with a module behind its head
  const cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  cost::TrainerEstimator estimator(model, cluster, trainer, strategy::Precision::kBf16, 4096);
  int num_shown = 0;
  for (int i = 0; i < 60 && num_shown < 12; ++i) {
    Strategy s = draw.strategy(estimator);
    if (s.mesh.world() > 128) continue;
    ++num_shown;
    const std::string what = words(s);
    CAPTURE(what);
    const schedule::StepGraph step = schedule::write_step(model, s);
    CHECK(fmt::format("{}", fmt::join(graph::validate(step.graph), "\n")) == "");
    CHECK(graph::find_deadlock(step.graph) == "");
    const double tasks = static_cast<double>(step.graph.tasks().size());
    CHECK(schedule::num_tasks(model, s, s.mesh.world()) == doctest::Approx(tasks).epsilon(0.25));
  }
  CHECK(num_shown >= 3);
}

TEST_CASE("where one pipeline is said to stand for all whole steps, it ends with all of them") {
  Draw draw(seed() + 1);
  const cost::TrainerProfile trainer = cost::load_trainer("piper");
  const model::Model model = model::load_model("qwen3-30b-a3b");
  int num_shown = 0;
  for (int i = 0; i < 60; ++i) {
    const cluster::Cluster cluster = cluster::load_cluster(i % 2 == 0 ? "dgx-h100" : "frontier");
    cost::TrainerEstimator estimator(model, cluster, trainer, strategy::Precision::kBf16, 4096);
    const Strategy s = draw.strategy(estimator);
    if (s.mesh.world() > 64 || !sim::why_not_symmetric_whole(s, cluster).empty()) continue;
    ++num_shown;
    const std::string what = words(s);
    CAPTURE(what);
    const auto seconds = [&](const std::vector<Rank>& ranks) {
      const cost::PricedStep whole = cost::write_priced_step(estimator, s, ranks);
      return sim::simulate(whole.step, whole.prices, false).seconds();
    };
    CHECK(seconds(strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0))) ==
          doctest::Approx(seconds({})).epsilon(1e-6));
  }
  CHECK(num_shown >= 5);
}
