// A faster network never makes a prediction slower: random strategies on random machines, one
// level's bandwidth, NICs or latency improved at a time.
//
// Strictly so where operations share nothing: then every task's end is a maximum of sums of prices.
// Where they share links, what becomes ready sooner may meet an operation that it used to miss and
// slow it (Graham's anomalies, 1969: of any resource that serves whoever comes). The bounds are
// those: in 6000 draws the worst was 0.8 % in the simulation and 0.06 % in the closed form.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/load_distribution.h>
#include <piper/cost/prices.h>
#include <piper/cost/random.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/model/import.h>
#include <piper/plan/what_if.h>
#include <piper/sim/simulate.h>
#include <piper/strategy/strategy.h>
#include <testing/cost/example_model.h>
#include <testing/cost/strategy_draw.h>
#include <tests/switches.h>

#include <algorithm>
#include <cstdlib>

namespace piper::plan {
namespace {

namespace example = cost::example;

struct Drawn {
  model::Model model;
  strategy::Strategy strategy;
  cluster::Cluster cluster, faster;
  cost::ExpertLoad load;
  std::string what;
};

double between(cost::Random& random, double least, double most) {
  return least * std::pow(most / least, random.uniform());
}

Drawn draw(uint64_t seed) {
  cost::Random random({seed});
  const auto one_of = [&](const auto& list) { return list[random.below(std::size(list))]; };
  Drawn d{.model = example::mixture(4, random.below(2) == 0)};
  for (model::Layer& layer : d.model.layers) {
    layer.feed_forward.num_experts = 8;
    if (random.below(2) == 0) layer.feed_forward.shared_ffn = 48;
  }
  const strategy::Mesh meshes[] = {{1, 4, 8}, {2, 2, 4}, {4, 4, 4}, {1, 2, 8},
                                   {2, 4, 8}, {4, 1, 2}, {1, 8, 16}};
  const strategy::Mesh mesh = one_of(meshes);
  d.strategy = example::strategy(d.model, mesh.pp, mesh.ep, mesh.dp,
                                 1 + static_cast<int64_t>(random.below(6)));
  d.strategy.recompute = one_of(strategy::kRecomputes);
  if (random.below(2) == 0) d.strategy.schedule = strategy::PipelineSchedule::kGPipe;
  d.cluster = example::nodes();
  for (cluster::Level& level : d.cluster.levels) {
    level.link.bytes_per_second *= between(random, 1e-4, 1);
    level.nic_bytes_per_second *= between(random, 1e-4, 1);
    level.link.latency_seconds *= between(random, 1e-3, 10);
  }
  if (random.below(2) == 0)
    d.load = cost::sample_load(cost::parse_load("zipf:0.7"), d.model, mesh.ep, seed, 0, 1);
  d.faster = d.cluster;
  cluster::Level& level = d.faster.levels[random.below(3)];
  const double factor = between(random, 1.01, 8);
  switch (random.below(4)) {
    case 0:
      level.link.bytes_per_second *= factor;
      d.what = "bandwidth";
      break;
    case 1:
      level.nic_bytes_per_second *= factor;
      d.what = "NICs";
      break;
    case 2:
      level.link.latency_seconds /= factor;
      d.what = "latency";
      break;
    default:
      for (cluster::Level& all : d.faster.levels) {
        all.link.bytes_per_second *= factor;
        all.nic_bytes_per_second *= factor;
        all.link.latency_seconds /= factor;
      }
      d.what = "everything";
  }
  d.what = fmt::format("seed {}: pp {} ep {} dp {}, {} of {} x{:.2f}", seed, mesh.pp, mesh.ep,
                       mesh.dp, d.what, level.name, factor);
  return d;
}

double closed(const Drawn& d, const cluster::Cluster& cluster) {
  return cost::ExecutorEstimator(d.model, cluster, d.strategy.precision, d.strategy.sequence,
                                 &d.load)
      .estimate(d.strategy)
      .seconds;
}

double simulated(const Drawn& d, const schedule::StepGraph& step, const cluster::Cluster& cluster,
                 bool share) {
  cost::Prices prices = cost::price(step, d.model, d.strategy, cluster, d.load);
  if (!share) prices.links = {};
  return sim::simulate(step, prices).seconds();
}

// A random strategy over every axis, as a trainer would run it, and a faster link of its cluster.
struct DrawnWhole {
  model::Model model;
  cluster::Cluster cluster;
  strategy::Strategy strategy;
  std::string change;  // as what_if.h reads it
};

DrawnWhole draw_whole(cost::example::StrategyDraw& draw) {
  const std::vector<std::string> models{"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "glm-4.5"};
  DrawnWhole d{.model = model::load_model(draw.one_of(models)),
               .cluster = cluster::load_cluster(
                   draw.one_of<std::string>({"dgx-h100", "frontier", "gb200", "h800"}))};
  d.strategy = draw.strategy(d.model, [&](const strategy::Strategy& s) {
    return s.mesh.world() <= std::min<int64_t>(1024, d.cluster.num_devices());
  });
  std::vector<strategy::AllToAll> exchanges(strategy::kAllToAlls.begin(),
                                            strategy::kAllToAlls.end());
  for (int i = 0; i < 4; ++i) exchanges.push_back(strategy::AllToAll::kHaloDedup);
  d.strategy.all_to_all = draw.one_of(exchanges);
  const std::string& level =
      d.cluster.levels[draw.one_of<size_t>({0, 0, 1, d.cluster.levels.size() - 1})].name;
  d.change = fmt::format(fmt::runtime(draw.one_of<std::string>({"bandwidth.{}=x", "latency.{}=x"})),
                         level);
  const bool is_latency = d.change.starts_with("latency");
  d.change += draw.one_of<std::string>(is_latency ? std::vector<std::string>{"0.9", "0.5"}
                                                  : std::vector<std::string>{"1.01", "1.1", "2"});
  return d;
}

double closed(const DrawnWhole& d, const cluster::Cluster& cluster) {
  static const cost::TrainerProfile kStack = cost::load_trainer("piper");
  return cost::TrainerEstimator(d.model, cluster, kStack, d.strategy.precision, d.strategy.sequence)
      .estimate(d.strategy)
      .seconds;
}

std::string words(const DrawnWhole& d) {
  return fmt::format("{} on {}, {}: {} {}", d.model.name, d.cluster.name, d.change,
                     cost::example::words(d.strategy), strategy::name(d.strategy.all_to_all));
}

}  // namespace

TEST_CASE(
    "a faster network never makes a prediction slower, but for anomalies of sharing below 2 %") {
  double worst_closed = -1, worst_alone = -1, worst_shared = -1;
  int64_t num_faster = 0;
  const auto num_seeds = static_cast<uint64_t>(testing::repetitions({.usual = 500, .full = 1500}));
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    const Drawn d = draw(seed);
    INFO(d.what);
    const schedule::StepGraph step = schedule::write_step(d.model, d.strategy);
    const auto slower = [&](auto seconds) { return seconds(d.faster) / seconds(d.cluster) - 1; };
    const double by_form = slower([&](const auto& c) { return closed(d, c); });
    const double alone = slower([&](const auto& c) { return simulated(d, step, c, false); });
    const double shared = slower([&](const auto& c) { return simulated(d, step, c, true); });
    worst_closed = std::max(worst_closed, by_form);
    worst_alone = std::max(worst_alone, alone);
    worst_shared = std::max(worst_shared, shared);
    num_faster += shared < -1e-3 && by_form < -1e-3;
    CHECK(by_form <= 0.002);
    // What an exchange over nodes waits for is a part of a closed form, whatever its bytes take.
    CHECK(alone <= (d.strategy.mesh.ep > 1 ? 0.002 : 1e-9));
    CHECK(shared <= 0.02);
  }
  CHECK(num_faster > static_cast<int64_t>(num_seeds) / 5);
  MESSAGE(num_faster << " faster; the least gain: closed form " << -worst_closed
                     << ", nothing shared " << -worst_alone << ", shared " << -worst_shared);
}

// What hides of reductions behind an exchange goes with the exchange when that gets shorter, but no
// further.
TEST_CASE("of any axes under a trainer: a faster link, where exchanges of tokens cross once") {
  strategy::Strategy s{.precision = strategy::Precision::kBf16, .sequence = 4096};
  s.mesh = {.pp = 4, .ep = 16, .dp = 32};
  s.layers_per_stage = {23, 23, 23, 23};
  s.recompute = strategy::Recompute::kFull;
  s.zero = 3;
  s.offload = strategy::Offload::kOptimizer;
  s.all_to_all = strategy::AllToAll::kHaloDedup;
  s.micro_batch_sequences = 1;
  s.num_micro_batches = 8;
  s.global_batch_sequences = 256;
  const DrawnWhole d{model::load_model("glm-4.5"), cluster::load_cluster("dgx-h100"), s, ""};
  double before = closed(d, d.cluster);
  for (const char* change : {"1.1", "1.2", "1.5", "2"}) {
    const double now = closed(d, changed(d.cluster, std::string("bandwidth.node=x") + change));
    CHECK(now < before);
    before = now;
  }
}

// PIPER_TEST_DRAWS=n for more of them. What is left: pipelines that are simulated action by action
// (Graham's anomalies), and start-ups of an exchange that its flat form has and the trainer's flat
// price leaves out.
TEST_CASE("of any axes under a trainer: better links make no closed form slower beyond 0.2 %") {
  const uint64_t seed = cost::example::seed_or(20261122);
  MESSAGE("seed ", seed);
  cost::example::StrategyDraw draw({.tp = {1, 1, 2, 4, 8},
                                    .cp = {1, 1, 2},
                                    .dp = {2, 4, 8, 16, 32},
                                    .ep = {2, 4, 8, 16, 32},
                                    .micro_batch_sequences = {1, 2},
                                    .num_micro_batches = {2, 3, 4, 8},
                                    .micro_batches_times_pp = true},
                                   seed);
  const char* given = std::getenv("PIPER_TEST_DRAWS");
  const int num_draws = given != nullptr
                            ? std::atoi(given)
                            : static_cast<int>(testing::repetitions({.usual = 500, .full = 1500}));
  int num_faster = 0, num_slower = 0;
  double worst = -1, worst_simulated = -1;
  for (int i = 0; i < num_draws; ++i) {
    const DrawnWhole d = draw_whole(draw);
    const double slower = closed(d, changed(d.cluster, d.change)) / closed(d, d.cluster) - 1;
    num_faster += slower < -1e-3;
    num_slower += slower > 1e-9;
    const bool is_simulated = d.strategy.mesh.vpp > 1 || offloads_activations(d.strategy.offload);
    double& most = is_simulated ? worst_simulated : worst;
    if (slower > std::max(most, 1e-3)) MESSAGE("slower by ", slower, ": ", words(d));
    most = std::max(most, slower);
  }
  MESSAGE(num_draws, " draws, ", num_faster, " faster, ", num_slower, " slower; worst ", worst,
          ", of those that are simulated ", worst_simulated);
  CHECK(worst <= 0.002);
  CHECK(worst_simulated <= 0.02);
  CHECK(num_faster > num_draws / 10);
}

}  // namespace piper::plan
