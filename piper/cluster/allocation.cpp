#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/suggest.h>
#include <piper/cluster/allocation.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace piper::cluster {
namespace {

// Index of the cluster's level that each level of groups is.
std::vector<size_t> levels_of_groups(const Cluster& cluster, size_t num_group_levels,
                                     std::span<const std::string> names) {
  std::vector<size_t> levels;
  const size_t last = cluster.levels.size() - 1;
  if (names.empty()) {
    for (size_t i = 0; i < num_group_levels; ++i) levels.push_back(std::min(i + 1, last));
    return levels;
  }
  std::vector<std::string> allowed;
  for (size_t i = 1; i <= last; ++i) allowed.push_back(cluster.levels[i].name);
  if (names.size() != num_group_levels)
    throw InvalidInput(fmt::format("--levels names {} levels, the nodes have {} levels of groups",
                                   names.size(), num_group_levels));
  for (const std::string& name : names) {
    const auto found = std::ranges::find(allowed, name);
    const size_t level = static_cast<size_t>(found - allowed.begin()) + 1;
    if (found == allowed.end() || (!levels.empty() && level <= levels.back()))
      throw InvalidInput(
          fmt::format("--levels names '{}'; allowed: levels of {} from the inside out ({}){}", name,
                      cluster.name, fmt::join(allowed, ", "), did_you_mean(name, allowed)));
    levels.push_back(level);
  }
  return levels;
}

double share_of_device(const Cluster& cluster, size_t level) {
  const Level& l = cluster.levels[level];
  if (level == 0 || l.num_nics == 0 || l.nic_bytes_per_second <= 0) return l.link.bytes_per_second;
  return std::min(l.link.bytes_per_second,
                  static_cast<double>(l.num_nics) * l.nic_bytes_per_second /
                      static_cast<double>(cluster.devices_of_level(level - 1)));
}

// Levels first .. last of the cluster as one.
Level joined(const Cluster& cluster, size_t first, size_t last) {
  Level level = cluster.levels[last];
  level.num_members = 1;
  for (size_t i = first; i <= last; ++i) {
    level.num_members *= cluster.levels[i].num_members;
    level.link.bytes_per_second =
        std::min(level.link.bytes_per_second, share_of_device(cluster, i));
  }
  // NICs of a node stay NICs; further out units may have grown, and the share of a device counts.
  level.num_nics = first == 1 ? cluster.levels[1].num_nics : 0;
  level.nic_bytes_per_second = first == 1 ? cluster.levels[1].nic_bytes_per_second : 0;
  return level;
}

class Allocator {
 public:
  Allocator(const Cluster& cluster, const GroupsOfNodes& groups)
      : cluster_(cluster), groups_(groups) {}

  Allocation make(std::span<const std::string> nodes, std::span<const int64_t> slots,
                  std::span<const std::string> names) {
    add_nodes(nodes, slots);
    check_nesting();
    if (!problems_.empty()) throw InvalidInput(problems_);
    const size_t depth = result_.nodes[0].groups.size();
    if (nodes.size() > 1 && cluster_.levels.size() < 2)
      throw InvalidInput(fmt::format(
          "cluster {} has no level above its nodes; allowed: one whose 'levels' join several nodes",
          cluster_.name));
    add_levels(levels_of_groups(cluster_, depth, names));
    number_devices();
    return std::move(result_);
  }

 private:
  void problem(std::string text) {
    constexpr size_t kMost = 20;
    if (problems_.size() < kMost) problems_.push_back(std::move(text));
  }

  void add_nodes(std::span<const std::string> nodes, std::span<const int64_t> slots) {
    std::set<std::string> seen;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!seen.insert(nodes[i]).second) problem("node " + nodes[i] + " is listed twice");
      const auto found = groups_.find(nodes[i]);
      if (found == groups_.end()) {
        problem("node " + nodes[i] + " is in no switch or group of the topology");
        continue;
      }
      const int64_t most = cluster_.devices_per_node();
      if (slots[i] < 1 || slots[i] > most)
        problem(fmt::format("node {} takes {} ranks; allowed: 1 to {}, the devices of a node of {}",
                            nodes[i], slots[i], most, cluster_.name));
      if (!result_.nodes.empty() && result_.nodes[0].groups.size() != found->second.size())
        problem(fmt::format("node {} is in {} groups, node {} in {}; allowed: as many for all",
                            nodes[i], found->second.size(), result_.nodes[0].name,
                            result_.nodes[0].groups.size()));
      result_.nodes.push_back({nodes[i], slots[i], found->second, 0});
    }
    if (result_.nodes.empty() && problems_.empty()) problem("no nodes; allowed: one or more");
  }

  void check_nesting() {
    if (!problems_.empty()) return;
    for (size_t level = 0; level + 1 < result_.nodes[0].groups.size(); ++level) {
      std::map<std::string, std::string> outer;
      for (const AllocatedNode& node : result_.nodes) {
        const auto [found, is_new] = outer.try_emplace(node.groups[level], node.groups[level + 1]);
        if (found->second != node.groups[level + 1])
          problem(fmt::format("group {} lies in {} and in {} (node {}); allowed: one",
                              node.groups[level], found->second, node.groups[level + 1],
                              node.name));
      }
    }
  }

  void add_levels(const std::vector<size_t>& levels) {
    Cluster& machine = result_.machine = cluster_;
    machine.levels = {cluster_.levels[0]};
    machine.sources.clear();
    size_t done = 0;
    const size_t last = cluster_.levels.size() - 1;
    const auto add = [&](size_t level) {
      if (level > done) {
        machine.levels.push_back(joined(cluster_, done + 1, level));
      } else {
        machine.levels.push_back(joined(cluster_, last, last));
        machine.levels.back().num_members = 1;
      }
      done = level;
    };
    for (const size_t level : levels) add(level);
    std::set<std::string> outermost;
    for (const AllocatedNode& node : result_.nodes)
      outermost.insert(node.groups.empty() ? node.name : node.groups.back());
    if (outermost.size() > 1) add(std::min(done + 1, last));
  }

  // Units are numbered within the next outer one as they first appear; a node's number says all of
  // them.
  void number_devices() {
    const size_t depth = result_.nodes[0].groups.size();
    std::map<std::vector<std::string>, std::vector<std::string>> members;  // by path from outside
    std::vector<std::vector<int64_t>> digits(result_.nodes.size());
    Cluster& machine = result_.machine;
    for (size_t n = 0; n < result_.nodes.size(); ++n) {
      const AllocatedNode& node = result_.nodes[n];
      std::vector<std::string> path;
      for (size_t above = depth + 1; above-- > 0;) {
        const std::string& name = above == 0 ? node.name : node.groups[above - 1];
        std::vector<std::string>& known = members[path];
        const auto found = std::ranges::find(known, name);
        digits[n].push_back(found - known.begin());
        if (found == known.end()) known.push_back(name);
        if (above + 1 < machine.levels.size()) {
          int64_t& num = machine.levels[above + 1].num_members;
          num = std::max(num, static_cast<int64_t>(std::ssize(known)));
        }
        path.push_back(name);
      }
    }
    double devices = 1;
    for (const Level& level : machine.levels) devices *= static_cast<double>(level.num_members);
    if (devices > 1e15)
      throw InvalidInput("the groups of the nodes are too deep and too wide to be numbered");
    for (size_t n = 0; n < result_.nodes.size(); ++n)
      for (size_t i = 0; i <= depth; ++i)
        result_.nodes[n].first_device += digits[n][i] * machine.devices_of_level(depth - i);
  }

  const Cluster& cluster_;
  const GroupsOfNodes& groups_;
  std::vector<std::string> problems_;
  Allocation result_;
};

}  // namespace

int64_t Allocation::num_slots() const {
  int64_t sum = 0;
  for (const AllocatedNode& node : nodes) sum += node.num_slots;
  return sum;
}

Allocation allocate(const Cluster& cluster, std::span<const std::string> nodes,
                    const GroupsOfNodes& groups, std::span<const int64_t> slots,
                    std::span<const std::string> levels) {
  PIPER_CHECK(nodes.size() == slots.size());
  return Allocator(cluster, groups).make(nodes, slots, levels);
}

}  // namespace piper::cluster
