#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/collective/algorithms.h>
#include <piper/cost/executor_estimator.h>
#include <piper/cost/links.h>
#include <piper/cost/prices.h>
#include <piper/model/import.h>
#include <piper/plan/exchange_axis.h>
#include <piper/plan/exchange_choice.h>
#include <piper/plan/exchange_pick.h>
#include <piper/plan/search.h>
#include <piper/sim/placement.h>
#include <piper/sim/simulate.h>
#include <testing/cost/example_model.h>
#include <testing/plan/example_world.h>
#include <testing/plan/random_cluster.h>

#include <cmath>
#include <map>
#include <random>

namespace piper::plan {
namespace {

using cost::AllToAllConfig;
using cost::ExchangeSite;
using strategy::AllToAll;
using strategy::Strategy;

std::vector<AllToAllConfig> configs(int64_t bytes) {
  std::vector<AllToAllConfig> all;
  for (const AllToAll algorithm : strategy::kAllToAlls) all.push_back({algorithm, 0});
  for (const AllToAll algorithm : {AllToAll::kHalo, AllToAll::kHaloSwitch})
    for (const int64_t chunk : {bytes / 2, bytes, 3 * bytes})
      if (chunk >= 1024) all.push_back({algorithm, chunk});
  return all;
}

struct Error {
  double least = 0, most = 0;
  double squares = 0;
  int64_t num = 0, num_beyond = 0;  // 10 %
};

}  // namespace

TEST_CASE("closed forms of exchanges against the simulated steps, random machines and sizes") {
  std::mt19937 random(20261123);
  std::map<AllToAll, Error> errors;
  for (int i = 0; i < 150; ++i) {
    const cluster::Cluster cluster = random_cluster(random);
    const int64_t most = cluster.num_devices() / cluster.devices_per_node();
    const int64_t nodes = int64_t{1} << random() % 5;
    const sim::Placement placement = sim::packed(cluster, std::min(nodes, most));
    const auto n = std::ssize(placement.device);
    const int64_t bytes = int64_t{64} << random() % 18;
    const auto count = [=](int64_t, int64_t) { return bytes; };
    const sim::Fabric fabric = sim::fabric_of(cluster, placement);
    const collective::Topology topology = sim::topology_of(cluster, placement);
    const ExchangeSite site(cluster, {.size = n});
    for (const AllToAllConfig& config : configs(bytes)) {
      const double simulated =
          exchange_seconds(fabric, topology, count, config.algorithm, config.chunk_bytes);
      const double error =
          cost::configured_seconds(site, config, {static_cast<double>(bytes), 1}) / simulated - 1;
      Error& of = errors[config.algorithm];
      of.least = std::min(of.least, error);
      of.most = std::max(of.most, error);
      of.squares += error * error;
      ++of.num;
      of.num_beyond += std::abs(error) > 0.1 ? 1 : 0;
    }
  }
  for (const auto& [algorithm, e] : errors) {
    const double rms = std::sqrt(e.squares / static_cast<double>(e.num));
    MESSAGE(fmt::format("{}: {:+.1f} to {:+.1f} %, rms {:.1f} %, beyond 10 %: {} of {}",
                        strategy::name(algorithm), 100 * e.least, 100 * e.most, 100 * rms,
                        e.num_beyond, e.num));
    CAPTURE(strategy::name(algorithm));
    CHECK(std::max(-e.least, e.most) < 0.45);
    CHECK(rms < (algorithm == AllToAll::kNaive ? 0.15 : 0.1));
    CHECK(e.num_beyond * (algorithm == AllToAll::kHaloSwitch ? 4 : 6) < e.num);
  }
}

TEST_CASE(
    "a flat exchange has one price, in the step, in the explanation and by its simulated steps") {
  const cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  const model::Model model = model::load_model("qwen3-30b-a3b");
  const cost::Rates rates(cluster, strategy::Precision::kBf16);
  Strategy s{.mesh = {.ep = 16, .dp = 16},
             .layers_per_stage = {model.num_layers()},
             .precision = strategy::Precision::kBf16,
             .sequence = 4096,
             .global_batch_sequences = 16,
             .micro_batch_sequences = 1,
             .num_micro_batches = 1};
  for (const auto& [name, is_ordered_by_library] :
       {std::pair{"piper", false}, {"megatron", true}}) {
    CAPTURE(name);
    const cost::TrainerProfile trainer = cost::load_trainer(name);
    const auto exchange_of = [&](AllToAll algorithm) {
      s.all_to_all = algorithm;
      return cost::TrainerEstimator(model, cluster, trainer, s.precision, s.sequence)
          .estimate(s)
          .time.exchange;
    };
    const double step = exchange_of(AllToAll::kFlat) / exchange_of(AllToAll::kNodeAware);
    s.all_to_all = AllToAll::kFlat;
    double flat = 0, node_aware = 0;
    const ExchangeVerdict verdict = explain_exchange(model, cluster, s, &trainer, &rates);
    for (const ExchangeOption& o : verdict.options) {
      if (o.config.algorithm == AllToAll::kFlat) flat = o.seconds;
      if (o.config.algorithm == AllToAll::kNodeAware) node_aware = o.seconds;
    }
    CHECK(step == doctest::Approx(flat / node_aware).epsilon(0.01));
    const sim::Placement placement = sim::packed(cluster, 2);
    const auto count = [&](int64_t, int64_t) { return std::llround(verdict.task.load.pair_bytes); };
    const auto simulated = [&](AllToAll algorithm) {
      return exchange_seconds(sim::fabric_of(cluster, placement),
                              sim::topology_of(cluster, placement), count, algorithm);
    };
    const double steps = simulated(AllToAll::kFlat) / simulated(AllToAll::kNodeAware);
    CHECK(steps > 1.8);
    if (is_ordered_by_library)
      CHECK(step == 1);
    else
      CHECK(step == doctest::Approx(steps).epsilon(0.03));
  }
}

TEST_CASE("a hot rank: configurations that can be chosen are within 35 % of the simulated steps") {
  const cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  for (const int64_t nodes : {2, 4, 8})
    for (const int64_t bytes : {4096, 65536, 1048576}) {
      constexpr double kHot = 4;
      const sim::Placement placement = sim::packed(cluster, nodes);
      const auto n = static_cast<double>(placement.device.size());
      const auto count = [=](int64_t, int64_t to) {
        return to == 0 ? static_cast<int64_t>(kHot) * bytes : bytes;
      };
      const double mean = static_cast<double>(bytes) * (n - 1 + kHot) / n;
      const ExchangeSite site(cluster, {.size = static_cast<int64_t>(n)});
      for (const AllToAllConfig& config : {AllToAllConfig{AllToAll::kNodeAware, 0},
                                           {AllToAll::kTwoD, 0},
                                           {AllToAll::kLeader, 0},
                                           {AllToAll::kHaloPrinted, 0},
                                           {AllToAll::kHalo, 0},
                                           {AllToAll::kHalo, bytes}}) {
        CAPTURE(to_text(config));
        CAPTURE(nodes);
        CAPTURE(bytes);
        const double simulated = exchange_seconds(sim::fabric_of(cluster, placement),
                                                  sim::topology_of(cluster, placement), count,
                                                  config.algorithm, config.chunk_bytes);
        const double closed =
            configured_seconds(site, config, {mean, kHot * static_cast<double>(bytes) / mean});
        CHECK(std::abs(closed / simulated - 1) < 0.35);
      }
    }
}

TEST_CASE("scratch in closed form is that of the steps") {
  constexpr int64_t kBytes = 8192;
  for (const char* name : {"frontier", "dgx-h100"}) {
    const cluster::Cluster cluster = cluster::load_cluster(name);
    for (const int64_t nodes : {1, 2, 4, 8})
      for (const int64_t stride : {8, 4, 1}) {
        const int64_t n = nodes * 8 / stride;
        if (n < 2) continue;
        std::vector<int64_t> devices;
        for (int64_t i = 0; i < n; ++i) devices.push_back(i * stride);
        const collective::Topology topology = cost::topology_of(cluster, devices);
        const ExchangeSite site(cluster, {.stride = stride, .size = n});
        for (AllToAllConfig config : configs(kBytes)) {
          config.chunk_bytes = config.chunk_bytes == 3 * kBytes ? 2 * kBytes : config.chunk_bytes;
          collective::AllToAllOptions options;
          if (config.chunk_bytes > 0) options.chunk = config.chunk_bytes;
          int64_t most = 0;
          for (int64_t member = 0; member < n; ++member)
            most = std::max(most, collective::all_to_all(
                                      config.algorithm, member, topology,
                                      [](int64_t, int64_t) { return kBytes; }, options)
                                      .scratch_count);
          CAPTURE(to_text(config));
          CAPTURE(nodes);
          CAPTURE(stride);
          CHECK(cost::scratch_bytes(site, config, kBytes) == static_cast<double>(most));
        }
      }
  }
}

TEST_CASE("long even messages stay flat; short ones and hot ranks do not; what is fixed stays") {
  const cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  const ExchangeSite site(cluster, {.size = 64});
  CHECK(cost::best_all_to_all(site, {8e6, 1}).config == AllToAllConfig{AllToAll::kNodeAware, 0});
  CHECK(cost::best_all_to_all(site, {8e6, 1}).scratch_bytes == 0);
  const cost::PricedAllToAll small = cost::best_all_to_all(site, {64, 1});
  CHECK(small.config.algorithm == AllToAll::kTwoD);
  CHECK(small.factor < 0.75);
  CHECK(small.scratch_bytes > 0);
  const cost::PricedAllToAll hot = cost::best_all_to_all(site, {1e6, 6});
  CHECK(hot.config.algorithm == AllToAll::kHalo);
  CHECK(hot.config.chunk_bytes > 0);
  CHECK(hot.factor < 0.6);
  // A flat exchange that leaves out half of the bytes is harder to beat.
  CHECK(cost::best_all_to_all(site, {1e6, 2}).config.algorithm == AllToAll::kHalo);
  CHECK(cost::best_all_to_all(site, {1e6, 2}, {}, 0.5).config == AllToAllConfig{});
  CHECK(cost::best_all_to_all(site, {64, 1}, {.algorithm = AllToAll::kFlat}).config ==
        AllToAllConfig{});
  CHECK(cost::best_all_to_all(site, {8e6, 1}, {.algorithm = AllToAll::kLeader}).config ==
        AllToAllConfig{AllToAll::kLeader, 0});
  CHECK(cost::best_all_to_all(site, {8e6, 1}, {.algorithm = AllToAll::kHalo, .chunk_bytes = 12345})
            .config == AllToAllConfig{AllToAll::kHalo, 12345});
}

TEST_CASE("a step with an exchange that is not flat: closed form, simulation, memory") {
  const cluster::Cluster cluster = cost::example::nodes();
  model::Model model = cost::example::mixture(4);
  for (model::Layer& layer : model.layers) {
    layer.feed_forward.num_experts = 8;
    layer.feed_forward.top_k = 4;
  }
  std::map<strategy::Recompute, int64_t> flat_apart;
  for (const AllToAll algorithm : {AllToAll::kFlat, AllToAll::kHaloPrinted, AllToAll::kBruck,
                                   AllToAll::kTwoD, AllToAll::kLeader}) {
    const AllToAllConfig config{algorithm, 0};
    for (const strategy::Recompute recompute : strategy::kRecomputes) {
      CAPTURE(to_text(config));
      const std::string recomputed = strategy::name(recompute);
      CAPTURE(recomputed);
      strategy::Strategy s = cost::example::strategy(model, 1, 8, 8, 3);  // two nodes
      s.sequence = 64;
      s.recompute = recompute;
      s.all_to_all = config.algorithm;
      const schedule::StepGraph step = schedule::write_step(model, s);
      const graph::Timeline simulated = sim::simulate(step, cost::price(step, model, s, cluster));
      const cost::ExactEstimate closed =
          cost::ExecutorEstimator(model, cluster, s.precision, s.sequence).exact(s);
      const int64_t message = s.micro_batch_sequences * s.sequence * model.hidden * 4;
      CHECK(std::abs(closed.seconds / simulated.seconds() - 1) < 0.02);
      CAPTURE(closed.peak_bytes);
      CAPTURE(closed.memory[0].exchange_scratch);
      const int64_t apart = closed.peak_bytes - simulated.peak_bytes[0];
      CHECK(std::abs(apart) <= 4 * message);
      // Scratch itself is exact.
      CHECK(apart == flat_apart.try_emplace(recompute, apart).first->second);
      const bool flat = config == AllToAllConfig{};
      CHECK((closed.memory[0].exchange_scratch > 4 * message) == !flat);
    }
  }
}

TEST_CASE(
    "a step whose tokens cross once: closed form, simulation, memory; faster than flat where NICs "
    "are thin") {
  cluster::Cluster cluster = cost::example::nodes();
  cluster.fixed_task_seconds = 1e-7;
  cluster.levels[1].nic_bytes_per_second = 1e9;
  model::Model model = cost::example::mixture(4);
  for (model::Layer& layer : model.layers) {
    layer.feed_forward.num_experts = 32;
    layer.feed_forward.top_k = 8;
  }
  for (const strategy::Recompute recompute : strategy::kRecomputes) {
    const std::string recomputed = strategy::name(recompute);
    CAPTURE(recomputed);
    strategy::Strategy s = cost::example::strategy(model, 1, 8, 8, 3);  // two nodes
    s.sequence = 256;
    s.recompute = recompute;
    const auto seconds = [&] {
      const schedule::StepGraph step = schedule::write_step(model, s);
      const graph::Timeline simulated = sim::simulate(step, cost::price(step, model, s, cluster));
      const cost::ExactEstimate closed =
          cost::ExecutorEstimator(model, cluster, s.precision, s.sequence).exact(s);
      CHECK(std::abs(closed.seconds / simulated.seconds() - 1) < 0.02);
      CAPTURE(closed.peak_bytes);
      CAPTURE(simulated.peak_bytes[0]);
      CHECK(std::abs(static_cast<double>(closed.peak_bytes) /
                         static_cast<double>(simulated.peak_bytes[0]) -
                     1) < (s.all_to_all == AllToAll::kFlat ? 0.05 : 0.001));
      return simulated.seconds();
    };
    const double flat = seconds();
    s.all_to_all = AllToAll::kHaloDedup;
    s.all_to_all_chunk_bytes = 4096;
    CHECK(seconds() < 0.7 * flat);
  }
}

TEST_CASE("the search over every axis takes the exchange that a hot rank asks for") {
  const model::Model model = model::load_model("mixtral-8x7b");
  const cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  cost::TrainerProfile trainer = cost::load_trainer("piper");
  REQUIRE(!trainer.deduplicates_rows);
  Request request{.model = &model,
                  .cluster = &cluster,
                  .trainer = &trainer,
                  .num_devices = 32,
                  .sequence = 4096,
                  .global_batch_sequences = 64,
                  .memory_limit_bytes = 0.9 * static_cast<double>(cluster.memory_bytes),
                  .imbalance = 3};
  request.fixed.ep = 8;
  request.fixed.etp = 2;  // two nodes
  request.fixed.moe_schedule = strategy::MoeSchedule::kPlain;
  const auto best = [&] { return search(request).ranked.front(); };
  const Candidate chosen = best();
  CHECK(chosen.strategy.all_to_all == AllToAll::kHaloDedup);  // 1.27 rows fewer between nodes
  CHECK(chosen.estimate.fullest.exchange > 0);
  const cost::Rates rates(cluster, request.precision);
  const ExchangeVerdict verdict =
      explain_exchange(model, cluster, chosen.strategy, &trainer, &rates, request.imbalance);
  CHECK(verdict.options.size() == strategy::kEveryAllToAll.size());
  CHECK(verdict.options.front().chosen);
  request.fixed.exchange.algorithm = AllToAll::kHalo;
  CHECK(best().estimate.seconds > chosen.estimate.seconds);
  request.fixed.exchange.algorithm = AllToAll::kFlat;
  const Candidate flat = best();
  CHECK(flat.strategy.all_to_all == AllToAll::kFlat);
  CHECK(flat.estimate.fullest.exchange == 0);
  CHECK(flat.estimate.seconds > chosen.estimate.seconds);
  // Where nothing but the flat one fits, it is taken.
  request.fixed.exchange = {};
  // Chunks of rows hide more than tokens in place of their copies save.
  request.fixed.moe_schedule = std::nullopt;
  const Candidate open = best();
  CHECK(strategy::has_chunks(open.strategy.moe_schedule));
  CHECK(open.strategy.all_to_all != AllToAll::kHaloDedup);
  CHECK(open.estimate.seconds < chosen.estimate.seconds);
  request.fixed.moe_schedule = strategy::MoeSchedule::kPlain;
  request.memory_limit_bytes = flat.estimate.peak_bytes;
  CHECK(search(request).ranked.front().estimate.peak_bytes <= flat.estimate.peak_bytes);
  trainer.chooses_exchange = false;
  request.memory_limit_bytes = 0.9 * static_cast<double>(cluster.memory_bytes);
  CHECK(best().strategy.all_to_all == AllToAll::kFlat);
}

TEST_CASE("the search of what is trained takes a short exchange for short messages") {
  ExampleWorld world("piper-10m");
  world.cluster.kind = "cpu";  // priced as this Piper runs it
  Request request = world.request(16, 16);
  request.sequence = 16;
  request.precision = strategy::Precision::kFp32;
  request.fixed = {.pp = 1, .runnable = true};
  request.fixed.ep = std::min<int64_t>(16, world.model.num_experts());
  request.fixed.exchange.algorithm = AllToAll::kHaloPrinted;
  REQUIRE(request.has_exact_costs());
  const Plan fixed = search(request);
  REQUIRE(!fixed.ranked.empty());
  CHECK(fixed.ranked.front().strategy.all_to_all == AllToAll::kHaloPrinted);
  request.fixed.exchange = {};
  const Plan free = search(request);
  const strategy::Strategy& best = free.ranked.front().strategy;
  const ExchangeTask task = exchange_task(world.model, best);
  const ExchangeSite site(world.cluster, task.group);
  CHECK(cost::all_to_all_of(best) == pick_exchange(world.cluster, task.group, task.load_on(site)));
}

}  // namespace piper::plan
