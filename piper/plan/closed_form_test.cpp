// The search trusts the closed form; here it is held to the simulation.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/load_distribution.h>
#include <piper/cost/prices.h>
#include <piper/model/import.h>
#include <piper/sim/simulate.h>
#include <piper/strategy/rank_layout.h>
#include <testing/cost/example_model.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>
#include <cmath>

namespace piper::plan {
namespace {

namespace example = cost::example;
using strategy::PipelineSchedule;
using strategy::Recompute;
using strategy::Strategy;

graph::Timeline simulate(const model::Model& model, const Strategy& s,
                         const cluster::Cluster& cluster, const std::vector<Rank>& ranks = {}) {
  const schedule::StepGraph step = schedule::write_step(model, s, ranks);
  return sim::simulate(step, cost::price(step, model, s, cluster));
}

cost::ExactEstimate estimate(const model::Model& model, const Strategy& s,
                             const cluster::Cluster& cluster) {
  return cost::ExecutorEstimator(model, cluster, s.precision, s.sequence).exact(s);
}

// Calls `check` for meshes x schedules x recompute x counts.
template <class F>
void for_each(const model::Model& model, const std::vector<strategy::Mesh>& meshes, F check) {
  for (const strategy::Mesh& mesh : meshes)
    for (const auto schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kGPipe})
      for (const auto recompute : strategy::kRecomputes)
        for (const int64_t count : {1, 3, 8}) {
          Strategy s = example::strategy(model, mesh.pp, mesh.ep, mesh.dp, count);
          s.schedule = schedule;
          s.recompute = recompute;
          s.sequence = 64;
          INFO(fmt::format("pp {} ep {} dp {} {} {} x{}", mesh.pp, mesh.ep, mesh.dp,
                           strategy::name(schedule), strategy::name(recompute), count));
          check(s);
        }
}

const std::vector<strategy::Mesh> kMeshes = {{1, 1, 1}, {1, 1, 2}, {1, 4, 4}, {2, 1, 1}, {2, 2, 2},
                                             {2, 2, 4}, {4, 1, 2}, {4, 4, 4}, {3, 2, 4}};

}  // namespace

TEST_CASE("exclusive devices: the step time is within 2 % of the simulation") {
  const cluster::Cluster cluster = example::nodes();
  model::Model sharing = example::mixture(4);
  for (model::Layer& layer : sharing.layers) layer.feed_forward.shared_ffn = 48;
  sharing.layers.front().feed_forward = {.ffn = 64};
  for (const model::Model& model :
       {example::mixture(4), example::mixture(7, true), sharing, model::load_model("piper-10m"),
        model::with_mtp(model::load_model("piper-10m"), 2)}) {
    CAPTURE(model.name);
    CAPTURE(model.mtp_depth);
    for_each(model, kMeshes, [&](const Strategy& s) {
      const double simulated = simulate(model, s, cluster).seconds();
      CHECK(estimate(model, s, cluster).seconds == cost::near(simulated).epsilon(0.02));
    });
  }
}

TEST_CASE(
    "reductions that share links with exchanges and each other: within 3 % of the simulation") {
  struct Case {
    const char* model;
    const char* cluster;
    strategy::Mesh mesh;
    int64_t count, sequence;
  };
  for (const Case& c : {Case{"mixtral-8x7b", "dgx-h100", {1, 8, 64}, 1, 4096},
                        {"mixtral-8x7b", "dgx-h100", {2, 4, 32}, 2, 4096},
                        {"deepseek-v3", "dgx-h100", {8, 32, 64}, 8, 4096},
                        {"m10b-e16", "frontier", {4, 16, 16}, 4, 2048},
                        {"piper-100m", "rtx4090x8", {1, 1, 8}, 1, 1024},
                        {"piper-100m", "rtx4090x8", {2, 2, 4}, 4, 1024}})
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      const model::Model model = model::load_model(c.model);
      const cluster::Cluster cluster = cluster::load_cluster(c.cluster);
      Strategy s = example::strategy(model, c.mesh.pp, c.mesh.ep, c.mesh.dp, c.count);
      s.recompute = recompute;
      s.sequence = c.sequence;
      s.micro_batch_sequences = 1;
      s.global_batch_sequences = c.mesh.dp * c.count;
      if (cluster.compute.contains("bf16")) s.precision = strategy::Precision::kBf16;
      CAPTURE(c.model);
      CAPTURE(c.mesh.pp);
      CAPTURE(c.mesh.dp);
      const double simulated =
          simulate(model, s, cluster,
                   strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0)))
              .seconds();
      CHECK(estimate(model, s, cluster).seconds == cost::near(simulated).epsilon(0.03));
    }
}

TEST_CASE(
    "chunks and divided backwards: time within 5 % and memory within three messages of the "
    "simulation") {
  // The pipeline is simulated chunk by chunk: reductions behind all chunks but a rank's first are
  // left out.
  struct Case {
    PipelineSchedule schedule;
    strategy::Mesh mesh;
    std::vector<int64_t> layers_per_stage;
  };
  const cluster::Cluster cluster = example::nodes();
  model::Model sharing = example::mixture(8);
  for (model::Layer& layer : sharing.layers) layer.feed_forward.shared_ffn = 48;
  double worst_time = 0, worst_memory = 0;
  for (const model::Model& model : {example::mixture(8), sharing, model::load_model("piper-10m")})
    for (const Case& c :
         {Case{PipelineSchedule::kInterleaved, {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, {}},
          {PipelineSchedule::kInterleaved, {.pp = 2, .ep = 1, .dp = 2, .vpp = 2}, {1, 1, 2, 0}},
          {PipelineSchedule::kZbH1, {.pp = 4, .ep = 1, .dp = 1}, {}},
          {PipelineSchedule::kZbH1, {.pp = 2, .ep = 2, .dp = 4}, {}},
          {PipelineSchedule::kZbV, {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, {}},
          {PipelineSchedule::kDualPipeV, {.pp = 2, .ep = 1, .dp = 1, .vpp = 2}, {}},
          {PipelineSchedule::kDualPipeV, {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, {}},
          {PipelineSchedule::k1F1BPairs, {.pp = 1, .ep = 2, .dp = 2}, {}},
          {PipelineSchedule::k1F1BPairs, {.pp = 2, .ep = 2, .dp = 2}, {}},
          {PipelineSchedule::kInterleavedPairs, {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, {}}})
      for (const Recompute recompute : strategy::kRecomputes) {
        Strategy s = example::strategy(model, c.mesh.pp, c.mesh.ep, c.mesh.dp, 8);
        s.mesh = c.mesh;
        s.layers_per_stage = strategy::even_split(model.num_layers(), s.mesh.num_virtual_stages());
        if (!c.layers_per_stage.empty()) {
          s.layers_per_stage = c.layers_per_stage;
          s.layers_per_stage[0] += model.num_layers() - 4;
        }
        s.schedule = c.schedule;
        s.recompute = recompute;
        s.sequence = 64;
        INFO(fmt::format("{} {} pp {} ep {} dp {} recompute {}", model.name,
                         strategy::name(s.schedule), s.mesh.pp, s.mesh.ep, s.mesh.dp,
                         strategy::name(recompute)));
        REQUIRE(strategy::contradictions(s, model).empty());
        const graph::Timeline simulated = simulate(model, s, cluster);
        const cost::ExactEstimate e = estimate(model, s, cluster);
        CHECK(e.seconds == cost::near(simulated.seconds()).epsilon(0.05));
        worst_time = std::max(worst_time, std::abs(e.seconds / simulated.seconds() - 1));
        CHECK(e.time.total() == cost::near(e.seconds));
        const auto message =
            static_cast<double>(model.hidden * s.sequence * s.micro_batch_sequences * 4);
        for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
          int64_t peak = 0;
          for (int64_t member = 0; member < s.mesh.dp; ++member)
            peak = std::max(
                peak, simulated.peak_bytes[strategy::RankLayout(s).rank(stage, member).index()]);
          const double apart =
              static_cast<double>(e.memory[static_cast<size_t>(stage)].total() - peak);
          CAPTURE(stage);
          CHECK(std::abs(apart) <= 3 * message);
          worst_memory = std::max(worst_memory, std::abs(apart) / static_cast<double>(peak));
        }
      }
  MESSAGE(
      fmt::format("time {:.1f} %, memory {:.2f} % at worst", 100 * worst_time, 100 * worst_memory));
}

TEST_CASE("offload: time within 5 % and memory within three messages of the simulation") {
  // A link so slow that a step waits for it, and one that it hardly feels.
  const model::Model model = model::load_model("piper-10m");
  for (const double rate : {2e8, 5e9}) {
    cluster::Cluster cluster = example::nodes();
    cluster.numbers["host_copy_bytes_per_second"] = rate;
    for (const strategy::Offload offload :
         {strategy::Offload::kOptimizer, strategy::Offload::kActivations,
          strategy::Offload::kOptimizerAndActivations})
      for (const strategy::Mesh& mesh : {strategy::Mesh{1, 2, 2}, {2, 2, 2}, {4, 1, 2}})
        for (const auto schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kGPipe}) {
          Strategy s = example::strategy(model, mesh.pp, mesh.ep, mesh.dp, 8);
          s.schedule = schedule;
          s.sequence = 64;
          s.zero = 1;
          s.offload = offload;
          INFO(fmt::format("pp {} ep {} dp {} {} {} at {}", mesh.pp, mesh.ep, mesh.dp,
                           strategy::name(schedule), strategy::name(offload), rate));
          const graph::Timeline simulated = simulate(model, s, cluster);
          const cost::ExactEstimate e = estimate(model, s, cluster);
          CHECK(e.seconds == cost::near(simulated.seconds()).epsilon(0.05));
          const auto message =
              static_cast<double>(model.hidden * s.sequence * s.micro_batch_sequences * 4);
          for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
            int64_t peak = 0;
            for (int64_t member = 0; member < s.mesh.dp; ++member)
              peak = std::max(
                  peak, simulated.peak_bytes[strategy::RankLayout(s).rank(stage, member).index()]);
            CAPTURE(stage);
            CHECK(std::abs(static_cast<double>(e.memory[static_cast<size_t>(stage)].total() -
                                               peak)) <= 3 * message);
          }
        }
  }
}

TEST_CASE("uneven load: time within 2 % and memory within three messages of the simulation") {
  model::Model sharing = example::mixture(4);
  for (model::Layer& layer : sharing.layers) {
    layer.feed_forward.shared_ffn = 48;
    layer.feed_forward.num_experts = 8;
  }
  sharing.layers.front().feed_forward = {.ffn = 64};
  double worst = 0;
  for (const model::Model& model : {example::mixture(4), sharing, model::load_model("piper-10m")})
    for (const char* text : {"uniform", "zipf:0.5", "zipf:1.5", "hot-expert:2", "drift:1"})
      for (const strategy::Mesh& mesh : kMeshes)
        for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
          Strategy s = example::strategy(model, mesh.pp, mesh.ep, mesh.dp, 4);
          s.recompute = recompute;
          s.sequence = 64;
          const cluster::Cluster cluster = example::nodes();
          const cost::ExpertLoad load =
              cost::sample_load(cost::parse_load(text), model, mesh.ep, 3, 1, 2);
          INFO(fmt::format("{} {} pp {} ep {} dp {} {}", model.name, text, mesh.pp, mesh.ep,
                           mesh.dp, strategy::name(recompute)));
          const schedule::StepGraph step = schedule::write_step(model, s);
          const graph::Timeline simulated =
              sim::simulate(step, cost::price(step, model, s, cluster, load));
          cost::ExecutorEstimator estimator(model, cluster, s.precision, s.sequence, &load);
          const cost::ExactEstimate closed = estimator.exact(s);
          CHECK(closed.seconds == cost::near(simulated.seconds()).epsilon(0.02));
          worst = std::max(worst, std::abs(closed.seconds / simulated.seconds() - 1));
          const int64_t peak = *std::ranges::max_element(simulated.peak_bytes);
          CHECK(std::abs(closed.peak_bytes - peak) <=
                3 * s.micro_batch_sequences * s.sequence * model.hidden * 4);
        }
  MESSAGE("worst error: " << worst);
}

TEST_CASE("memory: within three messages between stages of the simulation's peak") {
  const cluster::Cluster cluster = example::nodes();
  model::Model sharing = example::mixture(4);
  for (model::Layer& layer : sharing.layers) layer.feed_forward.shared_ffn = 48;
  for (const model::Model& model : {example::mixture(4), sharing, model::load_model("piper-10m"),
                                    model::with_mtp(model::load_model("piper-10m"), 2)}) {
    CAPTURE(model.name);
    CAPTURE(model.mtp_depth);
    for_each(model, kMeshes, [&](const Strategy& s) {
      const graph::Timeline timeline = simulate(model, s, cluster);
      const std::vector<cost::StageMemory> memory = estimate(model, s, cluster).memory;
      for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
        CAPTURE(stage);
        const int64_t simulated =
            timeline.peak_bytes[strategy::RankLayout(s).rank(stage, 0).index()];
        const int64_t closed = memory[static_cast<size_t>(stage)].total();
        CHECK(std::abs(closed - simulated) <=
              3 * s.micro_batch_sequences * s.sequence * model.hidden * 4);
      }
    });
  }
}

TEST_CASE(
    "memory where all experts are one product: the simulation's too, and more than one by one") {
  const cluster::Cluster one_by_one = example::nodes();
  cluster::Cluster grouped = one_by_one;
  for (const char* name : {"expert_gemm.bf16", "expert_gemm_grouped.bf16"})
    grouped.curves.push_back({.name = name,
                              .unit = "flops",
                              .axes = {"rows", "hidden", "ffn", "experts", "skew"},
                              .points = {{{4, 8, 16, 4, 0}, 1, {.seconds = 1}}},
                              .fit = {}});
  const model::Model model = example::mixture(4);
  int num_larger = 0;
  for_each(model, kMeshes, [&](Strategy s) {
    s.precision = strategy::Precision::kBf16;
    const graph::Timeline timeline = simulate(model, s, grouped);
    const std::vector<cost::StageMemory> memory = estimate(model, s, grouped).memory,
                                         without = estimate(model, s, one_by_one).memory;
    for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
      CAPTURE(stage);
      const auto i = static_cast<size_t>(stage);
      const int64_t simulated = timeline.peak_bytes[strategy::RankLayout(s).rank(stage, 0).index()];
      CHECK(std::abs(memory[i].total() - simulated) <=
            3 * s.micro_batch_sequences * s.sequence * model.hidden * 2);
      num_larger += memory[i].total() > without[i].total() ? 1 : 0;
    }
  });
  CHECK(num_larger > 100);
}

TEST_CASE("ranks that share matrices: time within 2 %, 5 % with shared experts; three messages") {
  const cluster::Cluster cluster = example::nodes();
  model::Model dense = example::mixture(4);
  dense.layers[1].feed_forward = {.ffn = 64};
  for (const model::Model& model : {dense, model::load_model("piper-10m")})
    for (strategy::Mesh mesh : {strategy::Mesh{.dp = 2, .tp = 2},
                                {.pp = 2, .tp = 2},
                                {.ep = 2, .tp = 2},
                                {.ep = 2, .dp = 2, .etp = 2, .tp = 2},
                                {.pp = 2, .ep = 4, .dp = 2, .tp = 2}})
      for (const auto& [sequence_parallel, moe_schedule] :
           {std::pair{true, strategy::MoeSchedule::kPlain},
            {false, strategy::MoeSchedule::kPlain},
            {false, strategy::MoeSchedule::kMontaO1},
            {false, strategy::MoeSchedule::kParmS1}})
        for (const Recompute recompute : strategy::kRecomputes)
          for (const int64_t count : {1, 3, 8}) {
            Strategy s = example::strategy(model, mesh.pp, mesh.ep, mesh.dp, count);
            s.mesh = mesh;
            s.sequence_parallel = sequence_parallel;
            s.moe_schedule = moe_schedule;
            s.recompute = recompute;
            s.sequence = 64;
            INFO(fmt::format("{} pp {} ep {} dp {} etp {} tp {}{} {} {} x{}", model.name, mesh.pp,
                             mesh.ep, mesh.dp, mesh.etp, mesh.tp, sequence_parallel ? "+sp" : "",
                             strategy::name(moe_schedule), strategy::name(recompute), count));
            const graph::Timeline simulated = simulate(model, s, cluster);
            const cost::ExactEstimate closed = estimate(model, s, cluster);
            // Gathers among etp and tp meet on the same ports, which the closed form does not see.
            // Not of the example: latencies are its step, and the closed form lets no gather of a
            // recomputation begin before its turn.
            if (model.name != dense.name)
              CHECK(closed.seconds ==
                    cost::near(simulated.seconds()).epsilon(mesh.etp > 1 ? 0.05 : 0.02));
            for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
              CAPTURE(stage);
              const int64_t peak =
                  simulated.peak_bytes[strategy::RankLayout(s).rank(stage, 0).index()];
              const int64_t found = closed.memory[static_cast<size_t>(stage)].total();
              CHECK(std::abs(found - peak) <=
                    3 * s.micro_batch_sequences * s.sequence * model.hidden * 4);
            }
          }
}

TEST_CASE("on slow links sums and gathers of tokens take what is simulated, to 2 %, 5 % again") {
  cluster::Cluster cluster = example::nodes();
  cluster.levels[0].link.bytes_per_second = 1e9;  // so that they are exposed
  const model::Model model = model::load_model("piper-10m");
  for (const strategy::Mesh mesh : {strategy::Mesh{.tp = 2}, {.ep = 2, .tp = 2}, {.tp = 4}})
    for (const auto& [sequence_parallel, moe_schedule] :
         {std::pair{true, strategy::MoeSchedule::kPlain},
          {false, strategy::MoeSchedule::kPlain},
          {false, strategy::MoeSchedule::kMontaO1},
          {false, strategy::MoeSchedule::kParmS1}})
      for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
        Strategy s = example::strategy(model, 1, mesh.ep, 1, 8);
        s.mesh = mesh;
        s.sequence_parallel = sequence_parallel;
        s.moe_schedule = moe_schedule;
        s.recompute = recompute;
        s.sequence = 64;
        INFO(fmt::format("ep {} tp {}{} {} {}", mesh.ep, mesh.tp, sequence_parallel ? "+sp" : "",
                         strategy::name(moe_schedule), strategy::name(recompute)));
        const cost::ExactEstimate closed = estimate(model, s, cluster);
        // The closed form lets no gather of a recomputation begin before its turn.
        CHECK(closed.seconds == cost::near(simulate(model, s, cluster).seconds())
                                    .epsilon(recompute == Recompute::kFull ? 0.05 : 0.02));
        CHECK(closed.time.exchange > 0.1 * closed.seconds);
      }
}

// 10 % is what is wanted of a step's time (docs/validation.md). Where several exchanges are under
// way together, the simulation has them share links, and the closed form one behind the other: it
// adds up their latencies, which are the example's step, so that of the example memory alone is
// checked.
TEST_CASE("chunks of rows: time within 10 % and memory within three messages") {
  const cluster::Cluster cluster = example::nodes();
  double worst = 0;
  for (const model::Model& model : {example::mixture(4), model::load_model("piper-10m")})
    for (const strategy::Mesh& mesh : {strategy::Mesh{.ep = 2, .dp = 2},
                                       {.ep = 4, .dp = 4},
                                       {.pp = 2, .ep = 2, .dp = 4},
                                       {.dp = 2, .etp = 2},
                                       {.ep = 2, .dp = 2, .etp = 2, .tp = 2}})
      for (const auto& [schedule, chunks] :
           {std::pair<strategy::MoeSchedule, int64_t>{strategy::MoeSchedule::kChunked, 2},
            {strategy::MoeSchedule::kChunked, 3},
            {strategy::MoeSchedule::kChunked, 8},
            {strategy::MoeSchedule::kFasterMoe, 2},
            {strategy::MoeSchedule::kFasterMoe, 3},
            {strategy::MoeSchedule::kFasterMoe, 4}})
        for (const Recompute recompute : strategy::kRecomputes) {
          if (traits(schedule).groups_peers && chunks > mesh.ep) continue;
          Strategy s = example::strategy(model, mesh.pp, mesh.ep, mesh.dp, 3);
          s.mesh = mesh;
          s.sequence_parallel = mesh.tp > 1;
          s.moe_schedule = schedule;
          s.moe_chunks = chunks;
          s.recompute = recompute;
          s.sequence = 64;
          INFO(fmt::format("{} pp {} ep {} dp {} etp {} tp {} {} {} {}", model.name, mesh.pp,
                           mesh.ep, mesh.dp, mesh.etp, mesh.tp, strategy::name(schedule), chunks,
                           strategy::name(recompute)));
          const graph::Timeline simulated = simulate(model, s, cluster);
          const cost::ExactEstimate closed = estimate(model, s, cluster);
          if (model.name != example::mixture(4).name) {
            CHECK(closed.seconds == cost::near(simulated.seconds()).epsilon(0.1));
            worst = std::max(worst, std::abs(closed.seconds / simulated.seconds() - 1));
          }
          for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
            CAPTURE(stage);
            const int64_t peak =
                simulated.peak_bytes[strategy::RankLayout(s).rank(stage, 0).index()];
            CHECK(std::abs(closed.memory[static_cast<size_t>(stage)].total() - peak) <=
                  3 * s.micro_batch_sequences * s.sequence * model.hidden * 4);
          }
        }
  MESSAGE("worst error: " << worst);
}

TEST_CASE(
    "with divided optimizer states and gradients memory is the simulation's, time within 10 %") {
  const cluster::Cluster cluster = example::nodes();
  double worst = 0;
  for (const auto& [model, zero] : {std::pair{example::mixture(4), 1},
                                    {example::mixture(7, true), 1},
                                    {model::load_model("piper-10m"), 1},
                                    {model::with_mtp(model::load_model("piper-10m"), 2), 1},
                                    {example::mixture(4), 2},
                                    {example::mixture(7, true), 2},
                                    {model::load_model("piper-10m"), 2},
                                    {example::mixture(4), 3},
                                    {example::mixture(7, true), 3},
                                    {model::load_model("piper-10m"), 3}}) {
    CAPTURE(model.name);
    CAPTURE(model.mtp_depth);
    CAPTURE(zero);
    for_each(model, kMeshes, [&](const Strategy& whole) {
      Strategy s = whole;
      s.zero = zero;
      const graph::Timeline timeline = simulate(model, s, cluster);
      const cost::ExactEstimate closed = estimate(model, s, cluster);
      // What is wanted of a step's time (docs/validation.md): gathers share links as they come.
      CHECK(closed.seconds == cost::near(timeline.seconds()).epsilon(0.1));
      worst = std::max(worst, std::abs(closed.seconds / timeline.seconds() - 1));
      for (int64_t stage = 0; stage < s.mesh.pp; ++stage) {
        const cost::StageMemory& memory = closed.memory[static_cast<size_t>(stage)];
        CHECK(std::abs(memory.total() -
                       timeline.peak_bytes[strategy::RankLayout(s).rank(stage, 0).index()]) <=
              3 * s.micro_batch_sequences * s.sequence * model.hidden * 4);
        const int64_t undivided =
            estimate(model, whole, cluster).memory[static_cast<size_t>(stage)].optimizer;
        if (s.mesh.edp() == s.mesh.dp)
          CHECK(memory.optimizer <=
                undivided / s.mesh.dp + 16 * 64);  // rounded up, buffer by buffer
        else
          CHECK(memory.optimizer <= undivided);
      }
    });
  }
  MESSAGE("worst error of time: " << worst);
}

TEST_CASE("backwards in two parts with divided gradients and weights are priced within 10 %") {
  const cluster::Cluster cluster = example::nodes();
  double worst = 0;
  for (const model::Model& model : {example::mixture(8), model::load_model("piper-10m")})
    for (const strategy::Mesh& mesh : {strategy::Mesh{.pp = 2, .ep = 2, .dp = 2},
                                       {.pp = 2, .ep = 1, .dp = 4},
                                       {.pp = 4, .ep = 1, .dp = 2}})
      for (const int64_t zero : {2, 3})
        for (const int64_t count : {4, 8}) {
          Strategy s = example::strategy(model, mesh.pp, mesh.ep, mesh.dp, count);
          s.schedule = PipelineSchedule::kZbH1;
          s.sequence = 64;
          s.zero = zero;
          INFO(fmt::format("{} pp {} ep {} dp {} zero {} x{}", model.name, mesh.pp, mesh.ep,
                           mesh.dp, zero, count));
          const double simulated = simulate(model, s, cluster).seconds();
          const double closed = estimate(model, s, cluster).seconds;
          worst = std::max(worst, std::abs(closed / simulated - 1));
          CHECK(closed == cost::near(simulated).epsilon(0.1));
        }
  MESSAGE("worst error of time: " << worst);
}

// Bounds of a step whose ranks share the cores of one node. Nothing is faster than with a core
// each, nor than all tasks on cores that never rest. And while a chain of tasks stands still, every
// core works (Graham 1966): no order that keeps cores busy takes longer than the two together.
// Copies of exchanges may take time from ranks that compute, so they count as work in the upper
// bound and not in the lower one.
struct CoreBounds {
  double longest_chain = 0;     // simulated with a core each
  double compute = 0, all = 0;  // seconds of tasks over the cores
  double least() const { return std::max(longest_chain, compute); }
  double most() const { return longest_chain + all; }
};

CoreBounds core_bounds(const model::Model& model, const Strategy& s, cluster::Cluster cluster) {
  const auto cores = static_cast<double>(cluster.cores_per_node);
  cluster.cores_per_node = 0;  // a core each
  const schedule::StepGraph step = schedule::write_step(model, s);
  const cost::Prices prices = cost::price(step, model, s, cluster);
  CoreBounds bounds{.longest_chain = sim::simulate(step, prices).seconds()};
  for (const graph::Task& task : step.graph.tasks()) {
    const double seconds = prices.seconds[task.id.index()] / cores;
    bounds.all += seconds;
    if (task.kind == graph::TaskKind::kCompute) bounds.compute += seconds;
  }
  return bounds;
}

TEST_CASE(
    "ranks that share cores: closed form and simulation between what no order beats and what none "
    "exceeds, 10 % apart in the mean") {
  cluster::Cluster cluster = example::nodes();
  const model::Model model = model::load_model("piper-10m");
  double sum = 0;
  int64_t num = 0;
  for (const int64_t cores : {1, 2, 3}) {
    cluster.cores_per_node = cores;
    for_each(model, {{1, 4, 4}, {1, 2, 4}, {2, 2, 2}, {2, 1, 2}, {4, 1, 1}, {1, 1, 2}, {2, 1, 1}},
             [&](const Strategy& s) {
               CAPTURE(cores);
               REQUIRE(s.mesh.world() <= cluster.devices_per_node());
               const CoreBounds bounds = core_bounds(model, s, cluster);
               const double simulated = simulate(model, s, cluster).seconds();
               const double closed = estimate(model, s, cluster).seconds;
               for (const double seconds : {simulated, closed}) {
                 CHECK(seconds >= bounds.least() * 0.98);  // the closed form's own 2 %
                 CHECK(seconds <= bounds.most() * 1.02);
               }
               sum += std::abs(closed / simulated - 1);
               ++num;
             });
  }
  MESSAGE("mean error with shared cores: " << sum / static_cast<double>(num));
  CHECK(sum / static_cast<double>(num) <=
        0.1);  // what is wanted of a step's time (docs/validation.md)
}

// Links so slow that sums are most of a step, and such that they nearly hide.
TEST_CASE("whenever gradients' sums start, a step takes what is simulated, to 5 %") {
  const model::Model model = model::load_model("piper-10m");
  double worst = 0, most_gained = 0, most_lost = 0;
  for (const double slower : {1.0, 10.0, 100.0})
    for (const strategy::Mesh& mesh : {strategy::Mesh{.pp = 1, .ep = 2, .dp = 8},
                                       {.pp = 1, .ep = 1, .dp = 8},
                                       {.pp = 2, .ep = 2, .dp = 4},
                                       {.pp = 1, .ep = 4, .dp = 4, .cp = 2},
                                       {.pp = 1, .ep = 4, .dp = 4, .tp = 2}})
      for (const int64_t count : {1, 4}) {
        cluster::Cluster cluster = example::nodes();
        for (cluster::Level& level : cluster.levels) level.link.bytes_per_second /= slower;
        Strategy s = example::strategy(model, mesh.pp, mesh.ep, mesh.dp, count);
        s.mesh = mesh;
        s.sequence = 64;
        std::vector<double> seconds;
        for (const strategy::ReductionStart start : strategy::kReductionStarts) {
          s.reduction_start = start;
          INFO(fmt::format("pp {} ep {} dp {} cp {} tp {} x{} slower {} {}", mesh.pp, mesh.ep,
                           mesh.dp, mesh.cp, mesh.tp, count, slower, strategy::name(start)));
          seconds.push_back(simulate(model, s, cluster).seconds());
          const double closed = estimate(model, s, cluster).seconds;
          CHECK(closed == cost::near(seconds.back()).epsilon(0.05));
          worst = std::max(worst, std::abs(closed / seconds.back() - 1));
        }
        most_gained = std::max(most_gained, seconds[0] / seconds[1] - 1);
        most_lost = std::max(most_lost, seconds[2] / seconds[0] - 1);
      }
  MESSAGE(
      fmt::format("closed form {:.1f} % at worst; yielding gains up to {:.1f} %, the end loses "
                  "up to {:.1f} %",
                  100 * worst, 100 * most_gained, 100 * most_lost));
  CHECK(most_lost > 0.05);
  CHECK(most_gained > 0.01);
}

TEST_CASE("one pipeline stands for all when no device is shared and the load is balanced") {
  const cluster::Cluster cluster = example::nodes();
  const model::Model model = example::mixture(4);
  for (const strategy::Mesh& mesh : kMeshes) {
    const Strategy s = example::strategy(model, mesh.pp, mesh.ep, mesh.dp, 5);
    CAPTURE(mesh.pp);
    CAPTURE(mesh.dp);
    const double all = simulate(model, s, cluster).seconds();
    CHECK(simulate(model, s, cluster,
                   strategy::RankLayout(mesh).group(strategy::Axis::kPipeline, Rank(0)))
              .seconds() == cost::near(all));
  }
}

// Two parts compute more than the whole: each reads what the other reads, for every chunk again.
TEST_CASE("without a pipeline, whole and divided backwards take what is simulated, to 2 %") {
  const model::Model model = model::load_model("mixtral-8x7b");
  const cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  double worst = 0;
  for (const int64_t chunks : {1, 4, 16})
    for (const int64_t zero : {0, 1})
      for (const auto schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZbH1}) {
        Strategy s;
        s.mesh = {.pp = 1, .ep = 8, .dp = 64, .etp = 4};
        s.layers_per_stage = {model.num_layers()};
        s.schedule = schedule;
        s.precision = strategy::Precision::kBf16;
        s.sequence = 4096;
        s.micro_batch_sequences = 1;
        s.num_micro_batches = 8;
        s.global_batch_sequences = 512;
        s.zero = zero;
        s.all_to_all = strategy::AllToAll::kNodeAware;
        s.reduction = strategy::Reduction::kHierarchical;
        s.moe_chunks = chunks;
        if (chunks > 1) s.moe_schedule = strategy::MoeSchedule::kChunked;
        INFO(fmt::format("{} zero {}, {} chunks", strategy::name(schedule), zero, chunks));
        const double simulated =
            simulate(model, s, cluster,
                     strategy::RankLayout(s).group(strategy::Axis::kPipeline, Rank(0)))
                .seconds();
        const double closed = estimate(model, s, cluster).seconds;
        worst = std::max(worst, std::abs(closed / simulated - 1));
        CHECK(closed == cost::near(simulated).epsilon(0.02));
      }
  MESSAGE("worst ", 100 * worst, " %");
}

}  // namespace piper::plan
