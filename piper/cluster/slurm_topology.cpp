#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/suggest.h>
#include <piper/cluster/hostlist.h>
#include <piper/cluster/slurm_topology.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace piper::cluster {
namespace {

struct Switch {
  std::vector<std::string> nodes, switches;
  std::string where;  // file and line
  std::string parent;
  int height = -1;  // leaves 0; -1: not known yet
};

// Whether the text can name a group: it must fit into a line of a message.
bool is_name(const std::string& text) {
  constexpr size_t kMostLetters = 253;
  return !text.empty() && text.size() <= kMostLetters && std::ranges::none_of(text, [](char c) {
    return (static_cast<unsigned char>(c) < 0x20) || c == 0x7f;
  });
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const size_t end = std::min(line.find_first_of(" \t\r"), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

class TopologyReader {
 public:
  explicit TopologyReader(const std::string& source) : source_(source) {}

  GroupsOfNodes read(std::string_view text) {
    int64_t line = 0;
    std::string joined;
    int64_t first = 1;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      std::string_view now = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++line;
      if (joined.empty()) first = line;
      now = now.substr(0, now.find('#'));
      while (now.ends_with('\r') || now.ends_with(' ')) now.remove_suffix(1);
      const bool goes_on = now.ends_with('\\');
      if (goes_on) now.remove_suffix(1);
      joined += now;
      if (goes_on && !text.empty()) continue;
      add_line(joined, fmt::format("{}:{}", source_, first));
      joined.clear();
    }
    if (problems_.empty() && switches_.empty())
      problem(fmt::format("{}: no switch; allowed: lines such as SwitchName=s1 Nodes=node[1-16]",
                          source_));
    link();
    finish();
    for (auto& [name, s] : switches_) height_of(name, s, 0);
    finish();
    return groups();
  }

 private:
  void problem(std::string text) {
    constexpr size_t kMost = 20;
    if (problems_.size() < kMost) problems_.push_back(std::move(text));
  }
  void finish() const {
    if (!problems_.empty()) throw InvalidInput(problems_);
  }

  void add_line(const std::string& line, const std::string& where) {
    const std::vector<std::string_view> words = words_of(line);
    if (words.empty()) return;
    std::string name;
    Switch read{.where = where};
    for (const std::string_view word : words) {
      const size_t equals = std::min(word.find('='), word.size());
      const std::string key = lower(std::string(word.substr(0, equals)));
      const std::string value(word.substr(std::min(equals + 1, word.size())));
      if (key == "linkspeed") continue;
      if (key != "switchname" && key != "nodes" && key != "switches")
        return problem(fmt::format("{}: '{}'; allowed: SwitchName, Nodes, Switches, LinkSpeed",
                                   where, quote(Json(std::string(word.substr(0, equals))))));
      try {
        const std::string source = fmt::format("{}: {}", where, word.substr(0, equals));
        const std::vector<std::string> hosts = expand_hostlist(value, source);
        if (key == "switchname" && hosts.size() != 1)
          return problem(fmt::format("{}: SwitchName names {} switches; allowed: one a line", where,
                                     hosts.size()));
        if (key == "switchname") name = hosts[0];
        if (key == "nodes") read.nodes = hosts;
        if (key == "switches") read.switches = hosts;
      } catch (const InvalidInput& error) {
        return problem(error.what());
      }
    }
    if (name.empty()) return problem(where + ": a line without SwitchName=");
    if (read.nodes.empty() && read.switches.empty())
      return problem(fmt::format("{}: switch {} holds neither Nodes= nor Switches=", where, name));
    if (const auto [other, is_new] = switches_.try_emplace(name, read); !is_new)
      problem(fmt::format("{}: switch {} is there twice (first at {})", where, name,
                          other->second.where));
  }

  void link() {
    std::map<std::string, std::string> leaf;  // by node
    for (const auto& [name, s] : switches_) {
      for (const std::string& node : s.nodes)
        if (const auto [other, is_new] = leaf.try_emplace(node, name); !is_new)
          problem(fmt::format("{}: node {} is in switch {} and in switch {}; allowed: one", s.where,
                              node, other->second, name));
      for (const std::string& child : s.switches) {
        const auto found = switches_.find(child);
        if (found == switches_.end()) {
          problem(fmt::format("{}: switch {} is described nowhere", s.where, child));
        } else if (!found->second.parent.empty()) {
          problem(fmt::format("{}: switch {} is below {} and below {}; allowed: one", s.where,
                              child, found->second.parent, name));
        } else {
          found->second.parent = name;
        }
      }
    }
  }

  int height_of(const std::string& name, Switch& s, size_t depth) {
    if (s.height >= 0) return s.height;
    if (depth > kMostGroupLevels) {
      problem(fmt::format("{}: switch {} is {} levels deep or in a circle; allowed: {} levels",
                          s.where, name, depth, kMostGroupLevels));
      return s.height = 0;
    }
    int highest = -1;
    for (const std::string& child : s.switches)
      highest = std::max(highest, height_of(child, switches_.at(child), depth + 1));
    return s.height = highest + 1;
  }

  GroupsOfNodes groups() const {
    size_t levels = 0;
    for (const auto& [name, s] : switches_)
      levels = std::max(levels, static_cast<size_t>(s.height) + 1);
    if (levels > kMostGroupLevels)
      throw InvalidInput(fmt::format("{}: {} levels of switches; allowed: up to {}", source_,
                                     levels, kMostGroupLevels));
    GroupsOfNodes result;
    for (const auto& [name, s] : switches_) {
      std::vector<const std::string*> above;  // by height
      for (const auto* at = &name; !at->empty(); at = &switches_.at(*at).parent) {
        above.resize(static_cast<size_t>(switches_.at(*at).height) + 1, nullptr);
        above.back() = at;
      }
      above.resize(levels, nullptr);
      for (const std::string& node : s.nodes) {
        const std::string* last = &node;
        for (const std::string* group : above) {
          if (group != nullptr) last = group;
          result[node].push_back(*last);
        }
      }
    }
    return result;
  }

  const std::string& source_;
  std::map<std::string, Switch> switches_;
  std::vector<std::string> problems_;
};

}  // namespace

GroupsOfNodes parse_slurm_topology(std::string_view text, const std::string& source) {
  return TopologyReader(source).read(text);
}

GroupsOfNodes parse_node_groups(const Json& json, const std::string& source) {
  Problems problems(source);
  if (!json.is_object() || json.empty())
    throw InvalidInput(source +
                       ": allowed: an object such as {\"node[1-4]\": [\"switch 1\", \"rack 1\"]}");
  GroupsOfNodes result;
  for (const auto& [hosts, groups] : json.items()) {
    std::vector<std::string> names;
    const bool sound = groups.is_array() && !groups.empty() && groups.size() <= kMostGroupLevels &&
                       std::ranges::all_of(groups, [](const Json& g) {
                         return g.is_string() && is_name(g.get_ref<const std::string&>());
                       });
    if (!sound) {
      problems.add(hosts, fmt::format("is {}; allowed: 1 to {} names, innermost group first",
                                      quote(groups), kMostGroupLevels));
      continue;
    }
    for (const Json& group : groups) names.push_back(group);
    try {
      for (const std::string& node : expand_hostlist(hosts, source + ": the node list"))
        if (!result.try_emplace(node, names).second)
          problems.add(hosts, "holds node " + node + ", which is there already");
    } catch (const InvalidInput& error) {
      problems.add(error.what());
    }
  }
  problems.finish();
  return result;
}

GroupsOfNodes read_node_groups(const std::string& path) {
  const std::string text = read_text_file(path, 64 << 20);
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin != std::string::npos && text[begin] == '{')
    return parse_node_groups(parse_json(text, path), path);
  return parse_slurm_topology(text, path);
}

GroupsOfNodes groups_by_number(const Cluster& cluster, std::span<const std::string> nodes,
                               int64_t first_number) {
  const int64_t devices = cluster.devices_per_node();
  const int64_t num_nodes = cluster.num_devices() / devices;
  GroupsOfNodes result;
  for (const std::string& node : nodes) {
    const size_t begin = node.find_last_not_of("0123456789") + 1;
    int64_t number = -1;
    if (begin < node.size() && node.size() - begin < 18)
      std::from_chars(node.data() + begin, node.data() + node.size(), number);
    const int64_t place = number - first_number;
    if (number < 0 || place < 0 || place >= num_nodes)
      throw InvalidInput(
          fmt::format("node {} has no place in cluster {} by its number; allowed: numbers {} to {} "
                      "(--first-number), or --topology FILE",
                      node, cluster.name, first_number, first_number + num_nodes - 1));
    std::vector<std::string>& groups = result[node];
    groups.clear();
    for (size_t level = 1; level + 1 < cluster.levels.size(); ++level)
      groups.push_back(fmt::format("{} {}", cluster.levels[level].name,
                                   place * devices / cluster.devices_of_level(level)));
  }
  return result;
}

}  // namespace piper::cluster
