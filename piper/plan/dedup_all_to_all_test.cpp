#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/collective/halo_dedup_combine.h>
#include <piper/collective/halo_dedup_dispatch.h>
#include <piper/cost/dedup_all_to_all.h>
#include <piper/sim/flow_limit.h>
#include <piper/sim/placement.h>
#include <testing/plan/random_cluster.h>
#include <testing/plan/regret.h>
#include <tests/switches.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

namespace piper::plan {
namespace {

using collective::TokenRoutes;

struct DedupCase {
  int64_t members = 0, tokens = 0, row_bytes = 0, pieces = 1;
  model::FeedForward layer;
};

// Routers that favour no expert.
std::vector<TokenRoutes> draw_routes(const DedupCase& c, std::mt19937& random) {
  const int64_t held = c.layer.num_experts / c.members;
  std::vector<int64_t> experts(static_cast<size_t>(c.layer.num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  std::vector<TokenRoutes> routes(static_cast<size_t>(c.members));
  for (TokenRoutes& of : routes)
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t k = 0; k < c.layer.top_k; ++k)
        std::swap(
            experts[static_cast<size_t>(k)],
            experts[static_cast<size_t>(k) + random() % (experts.size() - static_cast<size_t>(k))]);
      std::vector<int32_t> targets;
      for (int64_t k = 0; k < c.layer.top_k; ++k)
        targets.push_back(static_cast<int32_t>(experts[static_cast<size_t>(k)] / held));
      std::ranges::sort(targets);
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      of.add(targets);
    }
  return routes;
}

struct Simulated {
  double dispatch = 0, combine = 0;
  double scratch = 0;  // bytes of a member in the larger of the two, the mean
  // Lower bounds by the messages that were simulated: the mean busy seconds of the ports of one
  // speed, for the speed with the largest mean.
  double dispatch_limit = 0, combine_limit = 0;
};

double busiest(const sim::SimulatedFlows& simulated, const sim::Fabric& fabric) {
  std::map<double, std::pair<double, int64_t>> ports;  // seconds and number, by speed
  for (size_t p = 0; p < simulated.port_bytes.size(); ++p) {
    auto& [seconds, num] = ports[fabric.bytes_per_second[p]];
    seconds += simulated.busy_seconds(fabric, p);
    ++num;
  }
  double most = 0;
  for (const auto& [speed, of] : ports)
    most = std::max(most, of.first / static_cast<double>(of.second));
  return most;
}

Simulated simulate(const DedupCase& c, const std::vector<TokenRoutes>& routes,
                   const sim::Fabric& fabric, const collective::Topology& topology) {
  const collective::Units units(topology, 0);
  double scratch[2] = {0, 0};
  const auto steps = [&](int64_t me, bool dispatches) {
    const collective::DedupKnown known{
        .own = routes[static_cast<size_t>(me)],
        .into_unit =
            [&, me](int64_t from) {
              return routes_told(routes[static_cast<size_t>(from)], from, me, units);
            },
        .rows =
            [&, me](int64_t from) {
              return counts_told(routes[static_cast<size_t>(from)], from, me, units, c.pieces);
            }};
    const collective::Dedup dedup{.row_count = c.row_bytes, .num_pieces = c.pieces};
    collective::MemberSteps all = dispatches ? halo_dedup_dispatch(me, topology, known, dedup)
                                             : halo_dedup_combine(me, topology, known, dedup);
    scratch[dispatches] += static_cast<double>(all.scratch_count) / static_cast<double>(c.members);
    return all;
  };
  const auto flows = [&](bool dispatches) {
    return sim::simulate_flows(
        sim::flow_program(c.members, [&](int64_t me) { return steps(me, dispatches); }), fabric);
  };
  const sim::SimulatedFlows there = flows(true), back = flows(false);
  Simulated simulated{.dispatch = there.seconds,
                      .combine = back.seconds,
                      .dispatch_limit = busiest(there, fabric),
                      .combine_limit = busiest(back, fabric)};
  simulated.scratch = std::max(scratch[0], scratch[1]);
  return simulated;
}

DedupCase random_case(int64_t members, std::mt19937& random) {
  DedupCase c{.members = members};
  c.layer.top_k = int64_t{2} << random() % 3;
  c.layer.num_experts =
      c.members * std::max<int64_t>(int64_t{1} << random() % 3, c.layer.top_k / c.members + 1);
  c.tokens = int64_t{16} << random() % 6;
  c.row_bytes = int64_t{1024} << random() % 4;
  return c;
}

}  // namespace

// By random routings on random machines. What its choice of pieces costs is printed, not asserted:
// it is no better than never to cut (docs/collectives.md).
TEST_CASE(
    "tokens that cross once: the closed form is not below what ports need; scratch is the "
    "draw's") {
  std::mt19937 random(20261122);
  Regret behind, uncut;  // the best simulated one
  double worst_scratch = 0;
  for (int64_t i = 0; i < testing::repetitions({.usual = 30, .full = 120}); ++i) {
    const cluster::Cluster cluster = random_cluster(random);
    const int64_t most = cluster.num_devices() / cluster.devices_per_node();
    const sim::Placement placement =
        sim::packed(cluster, std::min(int64_t{1} << random() % 4, most));
    if (std::ssize(placement.device) > 32) continue;
    DedupCase c = random_case(std::ssize(placement.device), random);
    const std::vector<TokenRoutes> routes = draw_routes(c, random);
    const cost::ExchangeSite site(cluster, {.size = c.members});
    const int64_t all = c.tokens * c.row_bytes;
    const cost::ExchangeLoad load{
        static_cast<double>(all * c.layer.top_k) / static_cast<double>(c.members), 1,
        cost::expected_spread(c.layer, site.members(), site.levels.front().members,
                              static_cast<double>(c.row_bytes))};
    // The mean of so many draws strays by three of its deviations in one case of 400.
    const double noise = 3 / std::sqrt(static_cast<double>(c.tokens * c.members));
    std::map<double, double> simulated_by_closed;  // seconds there and back
    double best = INFINITY, in_one_piece = 0;
    for (const int64_t pieces : {1, 2, 4, 8, 16}) {
      c.pieces = pieces;
      const int64_t chunk = pieces == 1 ? 0 : all / pieces;
      const Simulated simulated = simulate(c, routes, sim::fabric_of(cluster, placement),
                                           sim::topology_of(cluster, placement));
      const cost::DedupSeconds closed = cost::dedup_seconds(site, chunk, load);
      CAPTURE(c.members);
      CAPTURE(pieces);
      CHECK(closed.dispatch >= simulated.dispatch_limit * (1 - noise));
      CHECK(closed.combine >= simulated.combine_limit * (1 - noise));
      simulated_by_closed.emplace(closed.mean(), simulated.dispatch + simulated.combine);
      best = std::min(best, simulated.dispatch + simulated.combine);
      if (pieces == 1) in_one_piece = best;
      const double scratch = cost::dedup_scratch_bytes(site, load);
      if (simulated.scratch > 0)
        worst_scratch = std::max(worst_scratch, std::abs(scratch / simulated.scratch - 1) / noise);
    }
    behind.add(simulated_by_closed.begin()->second / best - 1);
    uncut.add(in_one_piece / best - 1);
  }
  const auto percent = [](const Regret& b) { return 100 * b.sum / static_cast<double>(b.num); };
  MESSAGE(fmt::format("behind the best: {:.2f} % in the mean, {:.1f} % at worst; uncut {:.2f} %",
                      percent(behind), 100 * behind.worst, percent(uncut)));
  CHECK(worst_scratch <= 1);
}

}  // namespace piper::plan
