// A machine of three levels drawn at random: 2 to 8 devices a node that share NICs, 2 or 4 nodes a
// group, 4 groups. For tests.
#pragma once

#include <piper/cluster/cluster.h>

#include <cstdint>
#include <initializer_list>
#include <random>

namespace piper::plan {

inline cluster::Cluster random_cluster(std::mt19937& random) {
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
  cluster.levels[1].num_nics = cluster.levels[0].num_members / static_cast<int64_t>(one_of({1, 2}));
  cluster.levels[1].nic_bytes_per_second = card *
                                           static_cast<double>(cluster.levels[0].num_members) /
                                           static_cast<double>(cluster.levels[1].num_nics);
  return cluster;
}

}  // namespace piper::plan
