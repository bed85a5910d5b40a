#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/collective/algorithms.h>
#include <piper/cost/example_model.h>
#include <piper/cost/links.h>
#include <piper/model/import.h>
#include <piper/plan/exchange_axis.h>
#include <piper/plan/exchange_choice.h>
#include <piper/plan/plan.h>
#include <piper/plan/whole.h>
#include <piper/sim/placement.h>
#include <piper/sim/play.h>

#include <cmath>
#include <map>
#include <random>

namespace piper::plan {
namespace {

using cost::ExchangeForm;
using cost::ExchangeSite;
using strategy::AllToAll;

cluster::Cluster random_cluster(std::mt19937& random) {
  const auto one_of = [&](std::initializer_list<double> values) {
    return *(values.begin() + random() % values.size());
  };
  cluster::Cluster cluster = cluster::load_cluster("frontier");
  cluster.levels.resize(3);
  const double card = one_of({5e9, 12.5e9, 50e9}), latency = one_of({3e-6, 15e-6, 40e-6});
  const double inner = one_of({2, 4, 16});
  cluster.levels[0].num_members = static_cast<int64_t>(one_of({2, 4, 8}));
  cluster.levels[1].num_members = static_cast<int64_t>(one_of({2, 4}));
  cluster.levels[2].num_members = 4;
  cluster.levels[0].link = {latency / 3, inner * card};
  cluster.levels[1].link = {latency, card};
  cluster.levels[2].link = {latency * one_of({1, 1.3}), card * one_of({1, 0.5})};
  cluster.levels[1].num_nics =
      cluster.levels[0].num_members / static_cast<int64_t>(one_of({1, 2}));
  cluster.levels[1].nic_bytes_per_second = card *
                                           static_cast<double>(cluster.levels[0].num_members) /
                                           static_cast<double>(cluster.levels[1].num_nics);
  return cluster;
}

std::vector<ExchangeForm> forms(int64_t bytes) {
  std::vector<ExchangeForm> all;
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

TEST_CASE("closed forms of exchanges against the played steps, random machines and sizes") {
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
    for (const ExchangeForm& form : forms(bytes)) {
      if (form.algorithm == AllToAll::kFlat) continue;  // what it is priced as: node-aware
      const double played =
          exchange_seconds(fabric, topology, count, form.algorithm, form.chunk_bytes);
      const double error =
          cost::form_seconds(site, form, {static_cast<double>(bytes), 1}) / played - 1;
      Error& of = errors[form.algorithm];
      of.least = std::min(of.least, error);
      of.most = std::max(of.most, error);
      of.squares += error * error;
      ++of.num;
      of.num_beyond += std::abs(error) > 0.1 ? 1 : 0;
    }
  }
  for (const auto& [algorithm, e] : errors) {
    MESSAGE(fmt::format("{}: {:+.1f} to {:+.1f} %, rms {:.1f} %, beyond 10 %: {} of {}",
                        strategy::name(algorithm), 100 * e.least, 100 * e.most,
                        100 * std::sqrt(e.squares / static_cast<double>(e.num)), e.num_beyond,
                        e.num));
  }
}

}  // namespace piper::plan
