// What every pipeline schedule idles and holds when it is executed, on 2 and 4 stages. Products are
// replaced by a stand-in that sleeps, so that as many stages "compute" at once as there are,
// however few cores the machine has; all else is the executor's own.
#include <bench/step_bench.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/comm/local.h>
#include <piper/cost/bubble.h>
#include <piper/cost/prices.h>
#include <piper/sim/simulate.h>
#include <piper/strategy/runnable.h>
#include <tests/switches.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

using namespace piper;
using graph::Phase;
using schedule::SegmentKind;
using strategy::PipelineSchedule;

namespace {

// The three parts of one layer's work take equally long, as in the literature.
const double kUnit = testing::full_counts() ? 0.02 : 0.004;  // seconds
const double kForward = kUnit, kInput = kUnit, kWeights = kUnit;

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Layers that sleep instead of computing, and count what waits for its backward.
class SleepingStage final : public nn::BenchStage {
 public:
  at::Tensor attention_forward(int32_t, const at::Tensor& x_TD, int64_t, nn::Tape*) override {
    most_ = std::max(most_, ++live_);
    sleep(kForward);
    return x_TD.clone();
  }
  at::Tensor attention_backward(int32_t, const at::Tensor& gx1_TD, const at::Tensor&,
                                const at::Tensor&, int64_t, nn::Tape& tape) override {
    sleep(kInput);
    tape.weights_part([this] {
      sleep(kWeights);
      --live_;
    });
    return gx1_TD.clone();
  }
  at::Tensor dense_mlp_forward(int32_t, const at::Tensor& x1_TD, nn::Tape*) override {
    return x1_TD.clone();
  }
  at::Tensor dense_mlp_backward(int32_t, const at::Tensor& gx_TD, const at::Tensor&,
                                nn::Tape&) override {
    return gx_TD.clone();
  }
  void head_forward(const at::Tensor&, const at::Tensor&, nn::Tape*) override {}
  at::Tensor head_backward(const at::Tensor& x_TD, const at::Tensor&, nn::Tape&) override {
    return x_TD.clone();
  }
  std::vector<nn::Parameter>& parameters() override { return none_; }
  void zero_gradients() override {}
  void run_products() override {}

  int64_t most() const { return most_; }  // layers whose forward has run and whose backward
  int64_t live() const { return live_; }  // has not ended: at once; at the end of a step

 private:
  int64_t live_ = 0, most_ = 0;
  std::vector<nn::Parameter> none_;
};

model::Model model_of(int64_t layers) {
  model::Model m;
  m.name = "sleeping";
  m.hidden = 8;
  m.vocabulary = 8;
  model::Layer layer;
  layer.attention = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 8};
  layer.feed_forward = {.ffn = 8};
  m.layers.assign(static_cast<size_t>(layers), layer);
  return m;
}

// Two layers a rank: in two chunks where the schedule has several.
strategy::Strategy strategy_of(PipelineSchedule schedule, int64_t pp, int64_t num_micro_batches) {
  strategy::Strategy s;
  const bool chunks = strategy::is_v(schedule) || strategy::interleaves(schedule);
  s.mesh = {.pp = pp, .vpp = chunks ? 2 : 1};
  s.layers_per_stage = strategy::even_split(2 * pp, s.mesh.num_virtual_stages());
  s.schedule = schedule;
  s.sequence = 4;
  s.micro_batch_sequences = 1;
  s.num_micro_batches = s.global_batch_sequences = num_micro_batches;
  return s;
}

double simulated_seconds(const model::Model& model, const strategy::Strategy& s) {
  const schedule::StepGraph step = schedule::write_step(model, s);
  const std::map<Phase, double> seconds = {{Phase::kForward, kForward},
                                           {Phase::kBackward, kInput + kWeights},
                                           {Phase::kBackwardInput, kInput},
                                           {Phase::kBackwardWeights, kWeights}};
  cost::Prices prices;
  for (const graph::Task& task : step.graph.tasks()) {
    const bool sleeps = task.kind == graph::TaskKind::kCompute &&
                        step.segment(task).kind == SegmentKind::kAttention;
    prices.seconds.push_back(sleeps ? seconds.at(task.phase) : 0);
    prices.transient_bytes.push_back(0);
  }
  prices.slot_bytes.assign(step.graph.slots().size(), 0);
  prices.static_bytes.assign(static_cast<size_t>(s.mesh.world()), 0);
  prices.node_of_rank.assign(static_cast<size_t>(s.mesh.world()), 0);
  return sim::simulate(step, prices, false).seconds();
}

struct Executed {
  double seconds = 0;           // the median of the steps
  std::vector<int64_t> layers;  // most that waited for their backward at once, by rank
};

Executed execute(const model::Model& model, const strategy::Strategy& s, int64_t num_steps) {
  comm::LocalWorld world(s.mesh.world());
  std::map<Rank, SleepingStage*> stages;
  std::mutex mutex;
  train::StepBench bench(world, model, s, 0, [&](Rank rank) {
    auto stage = std::make_unique<SleepingStage>();
    {
      const std::lock_guard lock(mutex);
      stages[rank] = stage.get();
    }
    std::vector<executor::MicroBatch> batches(static_cast<size_t>(s.num_micro_batches));
    for (executor::MicroBatch& batch : batches)
      batch.tokens_BS = at::zeros({s.sequence, model.hidden});
    return train::BenchPart{std::move(stage), std::move(batches)};
  });
  std::vector<double> seconds;
  for (int64_t i = 0; i < num_steps; ++i)
    seconds.push_back(std::ranges::max(bench.step_seconds(1)));
  std::ranges::sort(seconds);
  Executed executed{.seconds = seconds[seconds.size() / 2], .layers = {}};
  for (const auto& [rank, stage] : stages) {
    CHECK(stage->live() == 0);
    executed.layers.push_back(stage->most());
  }
  return executed;
}

}  // namespace

TEST_CASE("every schedule holds what its formula says, and idles as long as the simulation") {
  const bool in_full = testing::full_counts();
  for (const int64_t pp : {2, 4}) {
    const int64_t m = 2 * pp;
    std::map<PipelineSchedule, std::pair<double, double>> simulated_and_executed;
    for (const PipelineSchedule schedule : strategy::kPipelineSchedules) {
      const strategy::Strategy s = strategy_of(schedule, pp, m);
      const model::Model model = model_of(2 * pp);
      REQUIRE(strategy::contradictions(s, model).empty());
      REQUIRE(strategy::not_runnable(s).empty());
      const double simulated = simulated_seconds(model, s);
      const Executed executed = execute(model, s, in_full ? 9 : 2);
      simulated_and_executed[schedule] = {simulated, executed.seconds};
      const cost::RankPassSeconds pass{
          .forward = 2 * kForward, .backward_input = 2 * kInput, .backward_weights = 2 * kWeights};
      const double work = static_cast<double>(m) * 2 * (kForward + kInput + kWeights);
      const double formula = work + cost::bubble_seconds(schedule, pp, s.mesh.vpp, m, pass);
      INFO(std::string(strategy::name(schedule)), " on ", pp, " stages");
      MESSAGE(
          fmt::format("{} on {} stages: bubble {:.1f} ms by formula, {:.1f} simulated, {:.1f} "
                      "executed of a step of {:.1f}; layers held {}",
                      strategy::name(schedule), pp, 1e3 * (formula - work),
                      1e3 * (simulated - work), 1e3 * (executed.seconds - work),
                      1e3 * executed.seconds, fmt::join(executed.layers, " ")));
      CHECK(simulated == doctest::Approx(formula).epsilon(0.02));
      for (int64_t rank = 0; rank < pp; ++rank) {
        const int64_t chunks = cost::chunk_forwards_in_flight(schedule, pp, s.mesh.vpp, rank, m);
        CHECK(executed.layers[static_cast<size_t>(rank)] == chunks * (s.mesh.vpp == 1 ? 2 : 1));
      }
      // Sleeping is never too short. How much too long depends on what else the machine does.
      CHECK(executed.seconds > 0.99 * simulated);
      if (in_full) CHECK(executed.seconds < 1.10 * simulated);
    }
    if (!in_full) continue;
    // What the divided backwards gain over 1F1B is what the simulation says, within 10 % of a step.
    const auto [plain_simulated, plain] = simulated_and_executed.at(PipelineSchedule::k1F1B);
    for (const PipelineSchedule schedule :
         {PipelineSchedule::kZbH1, PipelineSchedule::kZbV, PipelineSchedule::kDualPipeV}) {
      const auto [simulated, executed] = simulated_and_executed.at(schedule);
      CHECK(executed < plain);
      CHECK(std::abs(executed / plain - simulated / plain_simulated) < 0.10);
    }
  }
}
