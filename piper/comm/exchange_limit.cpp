#include <piper/comm/exchange_limit.h>

#include <algorithm>
#include <set>
#include <utility>

namespace piper::comm {
namespace {

struct Passing {
  int64_t out = 0, in = 0;
  double seconds(double rate) const {
    return rate > 0 ? static_cast<double>(std::max(out, in)) / rate : 0;
  }
};

// What has to leave and enter every unit.
std::vector<Passing> passing(const std::vector<int32_t>& unit, const collective::CountOf& count) {
  std::vector<Passing> units;
  const auto n = static_cast<int64_t>(unit.size());
  for (int64_t from = 0; from < n; ++from)
    for (int64_t to = 0; to < n; ++to) {
      const int32_t last = std::max(unit[from], unit[to]);
      if (last >= static_cast<int32_t>(units.size())) units.resize(last + 1);
      if (unit[from] == unit[to]) continue;
      units[unit[from]].out += count(from, to);
      units[unit[to]].in += count(from, to);
    }
  return units;
}

// What each member has for, and from, the others of its node.
std::vector<Passing> inner_passing(const std::vector<int32_t>& node,
                                   const collective::CountOf& count) {
  std::vector<Passing> members(node.size());
  const auto n = static_cast<int64_t>(node.size());
  for (int64_t from = 0; from < n; ++from)
    for (int64_t to = 0; to < n; ++to) {
      if (from == to || node[from] != node[to]) continue;
      members[from].out += count(from, to);
      members[to].in += count(from, to);
    }
  return members;
}

std::vector<int64_t> cards_of_nodes(const std::vector<int32_t>& node,
                                    const std::vector<int32_t>& nic) {
  std::set<std::pair<int32_t, int32_t>> cards;
  for (size_t m = 0; m < node.size(); ++m) cards.insert({node[m], nic.empty() ? 0 : nic[m]});
  std::vector<int64_t> counts(node.empty() ? 0 : *std::ranges::max_element(node) + 1);
  for (const auto& [unit, card] : cards) ++counts[unit];
  return counts;
}

}  // namespace

LinkRates link_rates(const cluster::Cluster& cluster, const collective::Topology& topology) {
  LinkRates rates{.inner = cluster.levels.front().link.bytes_per_second};
  if (cluster.levels.size() < 2) return rates;
  const cluster::Level& between = cluster.levels[1];
  rates.nic = between.nic_bytes_per_second;
  if (rates.nic == 0)
    rates.nic = between.link.bytes_per_second * static_cast<double>(cluster.devices_per_node()) /
                static_cast<double>(std::max<int64_t>(between.num_nics, 1));
  for (size_t level = 1; level < topology.unit.size(); ++level) {
    const bool known = level + 1 < cluster.levels.size();
    rates.uplink.push_back(known ? cluster.levels[level + 1].link.bytes_per_second *
                                       static_cast<double>(cluster.devices_of_level(level))
                                 : 0);
  }
  return rates;
}

double exchange_limit(const collective::Topology& topology, const collective::CountOf& count,
                      int64_t num_members, const LinkRates& rates) {
  std::vector<int32_t> node(num_members);
  for (int64_t m = 0; m < num_members; ++m)
    node[m] = topology.unit.empty() ? static_cast<int32_t>(m) : topology.unit.front()[m];
  double limit = 0;
  for (const Passing& member : inner_passing(node, count))
    limit = std::max(limit, member.seconds(rates.inner));
  const std::vector<int64_t> cards = cards_of_nodes(node, topology.nic);
  const std::vector<Passing> nodes = passing(node, count);
  for (size_t i = 0; i < nodes.size(); ++i)
    limit = std::max(limit, nodes[i].seconds(rates.nic * static_cast<double>(cards[i])));
  for (size_t level = 1; level < topology.unit.size() && level <= rates.uplink.size(); ++level)
    for (const Passing& unit : passing(topology.unit[level], count))
      limit = std::max(limit, unit.seconds(rates.uplink[level - 1]));
  return limit;
}

}  // namespace piper::comm
