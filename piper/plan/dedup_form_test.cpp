#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/collective/halo_dedup_combine.h>
#include <piper/collective/halo_dedup_dispatch.h>
#include <piper/cost/dedup_form.h>
#include <piper/plan/random_cluster.h>
#include <piper/sim/flow_limit.h>
#include <piper/sim/placement.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace piper::plan {
namespace {

using collective::TokenRoutes;

struct Case {
  int64_t members = 0, tokens = 0, row_bytes = 0, pieces = 1;
  model::FeedForward layer;
};

// Routers that favour no expert.
std::vector<TokenRoutes> draw(const Case& c, std::mt19937& random) {
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

struct Played {
  double dispatch = 0, combine = 0;
  double scratch = 0;  // bytes of a member in the larger of the two, the mean
};

Played play(const Case& c, const std::vector<TokenRoutes>& routes, const sim::Fabric& fabric,
            const collective::Topology& topology) {
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
  const auto seconds = [&](bool dispatches) {
    return sim::price(
        c.members, [&](int64_t me) { return steps(me, dispatches); }, fabric);
  };
  Played played{.dispatch = seconds(true), .combine = seconds(false)};
  played.scratch = std::max(scratch[0], scratch[1]);
  return played;
}

struct Error {
  double least = 0, most = 0, squares = 0;
  int64_t num = 0, num_beyond = 0;  // 15 %
  void add(double error) {
    least = std::min(least, error);
    most = std::max(most, error);
    squares += error * error;
    ++num;
    num_beyond += std::abs(error) > 0.15 ? 1 : 0;
  }
  double rms() const { return std::sqrt(squares / static_cast<double>(num)); }
};

}  // namespace

TEST_CASE(
    "tokens that cross once: closed form against the played steps, random machines and sizes") {
  std::mt19937 random(20261122);
  Error dispatch, combine, mean, scratch;
  for (int i = 0; i < 120; ++i) {
    const cluster::Cluster cluster = random_cluster(random);
    const int64_t most = cluster.num_devices() / cluster.devices_per_node();
    const sim::Placement placement =
        sim::packed(cluster, std::min(int64_t{1} << random() % 4, most));
    Case c{.members = std::ssize(placement.device)};
    if (c.members > 32) continue;
    c.layer.top_k = int64_t{2} << random() % 3;
    c.layer.num_experts =
        c.members * std::max<int64_t>(int64_t{1} << random() % 3, c.layer.top_k / c.members + 1);
    c.tokens = int64_t{16} << random() % 6;
    c.row_bytes = int64_t{1024} << random() % 4;
    const int64_t all = c.tokens * c.row_bytes,
                  chunk = random() % 2 ? 0 : all / (int64_t{1} << random() % 4);
    c.pieces = chunk == 0 ? 1 : (all + chunk - 1) / chunk;
    const Played played = play(c, draw(c, random), sim::fabric_of(cluster, placement),
                               sim::topology_of(cluster, placement));
    const cost::ExchangeSite site(cluster, {.size = c.members});
    const double pair = static_cast<double>(all * c.layer.top_k) / static_cast<double>(c.members);
    const cost::ExchangeLoad load{
        pair, 1,
        cost::expected_spread(c.layer, site.members(), site.levels.front().members,
                              static_cast<double>(c.row_bytes))};
    const cost::DedupSeconds closed = cost::dedup_seconds(site, chunk, load);
    dispatch.add(closed.dispatch / played.dispatch - 1);
    combine.add(closed.combine / played.combine - 1);
    mean.add(closed.mean() / ((played.dispatch + played.combine) / 2) - 1);
    scratch.add(cost::dedup_scratch_bytes(site, load) / std::max(played.scratch, 1.0) - 1);
  }
  for (const auto& [name, e] : {std::pair{"dispatch", dispatch},
                                {"combine", combine},
                                {"mean", mean},
                                {"scratch", scratch}})
    MESSAGE(fmt::format("{}: {:+.1f} to {:+.1f} %, rms {:.1f} %, beyond 15 %: {} of {}", name,
                        100 * e.least, 100 * e.most, 100 * e.rms(), e.num_beyond, e.num));
  CHECK(dispatch.rms() < 0.09);
  CHECK(mean.rms() < 0.13);
  CHECK(mean.num_beyond * 5 < mean.num);
  CHECK(std::max(-mean.least, mean.most) < 0.5);
  CHECK(scratch.rms() < 0.1);
}

}  // namespace piper::plan
