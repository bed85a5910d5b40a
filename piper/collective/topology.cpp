#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/collective/topology.h>

#include <algorithm>
#include <map>

namespace piper::collective {

int64_t num_members(const Topology& topology) {
  PIPER_CHECK(!topology.unit.empty(), "a topology without nodes");
  return static_cast<int64_t>(topology.unit.front().size());
}

Topology apart(int64_t num_members) { return even_nodes(num_members, 1); }

Topology even_nodes(int64_t num_nodes, int64_t members_a_node, int64_t num_nics,
                    int64_t nodes_a_group) {
  PIPER_CHECK(num_nodes >= 0 && members_a_node >= 1 && num_nics >= 1 && nodes_a_group >= 0);
  Topology topology;
  topology.unit.resize(nodes_a_group > 0 ? 2 : 1);
  for (int64_t node = 0; node < num_nodes; ++node)
    for (int64_t place = 0; place < members_a_node; ++place) {
      topology.unit[0].push_back(static_cast<int32_t>(node));
      if (nodes_a_group > 0) topology.unit[1].push_back(static_cast<int32_t>(node / nodes_a_group));
      topology.nic.push_back(static_cast<int32_t>(place * num_nics / members_a_node));
    }
  return topology;
}

Topology topology_among(const Topology& all, std::span<const Rank> members) {
  Topology among;
  for (const std::vector<int32_t>& level : all.unit) {
    std::map<int32_t, int32_t> number;
    std::vector<int32_t>& units = among.unit.emplace_back();
    for (const Rank rank : members)
      units.push_back(number.try_emplace(level[rank.index()], static_cast<int32_t>(number.size()))
                          .first->second);
  }
  for (const Rank rank : members)
    if (!all.nic.empty()) among.nic.push_back(all.nic[rank.index()]);
  return among;
}

std::vector<std::string> problems(const Topology& topology) {
  std::vector<std::string> found;
  if (topology.unit.empty()) return {"a topology without nodes"};
  const size_t n = topology.unit.front().size();
  if (!topology.nic.empty() && topology.nic.size() != n)
    found.push_back(fmt::format("NICs of {} members, nodes of {}", topology.nic.size(), n));
  for (size_t member = 0; member < topology.nic.size(); ++member)
    if (topology.nic[member] < 0)
      found.push_back(fmt::format("member {} has NIC {}", member, topology.nic[member]));
  for (size_t level = 0; level < topology.unit.size(); ++level) {
    const std::vector<int32_t>& unit = topology.unit[level];
    if (unit.size() != n) {
      found.push_back(fmt::format("level {} covers {} members of {}", level, unit.size(), n));
      continue;
    }
    std::vector<int32_t> sorted(unit);
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i)
      if (sorted[i] != static_cast<int32_t>(i)) {
        found.push_back(
            fmt::format("level {} has a unit {}, where {} is next", level, sorted[i], i));
        break;
      }
    if (!found.empty() || level == 0) continue;
    std::vector<int32_t> outer(n, -1);
    for (size_t member = 0; member < n; ++member) {
      int32_t& of_inner = outer[topology.unit[level - 1][member]];
      if (of_inner >= 0 && of_inner != unit[member])
        found.push_back(fmt::format("unit {} of level {} lies in units {} and {} of level {}",
                                    topology.unit[level - 1][member], level - 1, of_inner,
                                    unit[member], level));
      of_inner = unit[member];
    }
  }
  return found;
}

namespace {

// Returns, for each level further out, the unit of it in which each unit of `level` lies; the next
// level comes first.
std::vector<std::vector<int32_t>> racks_of(const Units& units, const Topology& topology,
                                           size_t level) {
  std::vector<std::vector<int32_t>> racks;
  for (size_t outer = level + 1; outer < topology.unit.size(); ++outer) {
    std::vector<int32_t>& rack = racks.emplace_back();
    for (int64_t unit = 0; unit < units.num_units(); ++unit)
      rack.push_back(topology.unit[outer][units.members(unit).front()]);
  }
  return racks;
}

// By member: its node's number among those of its unit.
std::vector<int32_t> turns_of(const Units& units, const Units& nodes) {
  std::vector<int32_t> turn(static_cast<size_t>(units.num_members()));
  for (int64_t unit = 0; unit < units.num_units(); ++unit) {
    std::map<int32_t, int32_t> number;  // of a node
    for (const int32_t member : units.members(unit))
      turn[member] =
          number.try_emplace(nodes.unit(member), static_cast<int32_t>(number.size())).first->second;
  }
  return turn;
}

}  // namespace

Units::Units(const Topology& topology, size_t level) {
  const auto n = static_cast<size_t>(collective::num_members(topology));
  unit_ = level < topology.unit.size() ? topology.unit[level] : std::vector<int32_t>(n, 0);
  PIPER_CHECK(unit_.size() == n, "a level that does not cover all members");
  const int32_t last = unit_.empty() ? -1 : *std::max_element(unit_.begin(), unit_.end());
  first_.assign(static_cast<size_t>(last) + 2, 0);
  for (const int32_t unit : unit_) ++first_[unit + 1];
  for (size_t unit = 1; unit < first_.size(); ++unit) first_[unit] += first_[unit - 1];
  std::vector<int64_t> next(first_.begin(), first_.end() - 1);
  members_.resize(n);
  place_.resize(n);
  for (size_t member = 0; member < n; ++member) {
    int64_t& place = next[unit_[member]];
    place_[member] = static_cast<int32_t>(place - first_[unit_[member]]);
    members_[place++] = static_cast<int32_t>(member);
  }
  order_ = UnitOrder(num_units(), racks_of(*this, topology, level));
  if (level > 0 && num_units() > 1) turn_ = turns_of(*this, Units(topology, 0));
}

std::vector<int32_t> Units::speaking_to(int64_t other, int64_t unit) const {
  std::vector<int32_t> found;
  const std::span<const int32_t> all = members(unit);
  const auto step = static_cast<size_t>(size(unit_[other]));
  for (auto i = static_cast<size_t>(place_[other]); i < all.size(); i += step)
    found.push_back(all[i]);
  return found;
}

}  // namespace piper::collective
