#include <piper/base/error.h>
#include <piper/sim/fabric.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace piper::sim {
namespace {

std::string at(const char* what, size_t index) {
  return std::string(what) + " " + std::to_string(index);
}

class Findings {
 public:
  explicit Findings(const Fabric& fabric) : fabric_(fabric) {}

  void check_time(const std::string& what, double seconds) {
    if (!(seconds >= 0) || !std::isfinite(seconds))
      say(what + " is " + std::to_string(seconds) + " seconds; allowed: 0 or more");
  }
  void check_ports(const std::string& what, const std::vector<int32_t>& ports, bool may_lack) {
    for (size_t i = 0; i < ports.size(); ++i) {
      const bool lacks = ports[i] == kNoPort && may_lack;
      if (!lacks && (ports[i] < 0 || ports[i] >= std::ssize(fabric_.bytes_per_second)))
        say(at(what.c_str(), i) + ": there is no port " + std::to_string(ports[i]));
    }
  }
  void check_size(const std::string& what, size_t size, size_t wanted) {
    if (size != wanted)
      say(what + " has " + std::to_string(size) + " entries; allowed: " + std::to_string(wanted));
  }
  void say(std::string line) { lines.push_back(std::move(line)); }

  std::vector<std::string> lines;

 private:
  const Fabric& fabric_;
};

size_t num_units(const FabricLevel& level) {
  return level.unit.empty() ? 0 : static_cast<size_t>(std::ranges::max(level.unit)) + 1;
}

void check_level(const Fabric& fabric, size_t l, Findings& found) {
  const FabricLevel& level = fabric.levels[l];
  const std::string name = "level " + level.name;
  found.check_time(name + ": latency", level.latency_seconds);
  found.check_size(name + ": unit", level.unit.size(), fabric.member_out.size());
  if (std::ranges::any_of(level.unit, [](int32_t unit) { return unit < 0; })) {
    found.say(name + ": a unit below 0");
    return;
  }
  const size_t units = num_units(level);
  const bool last = l + 1 == fabric.levels.size();
  if (last && units > 1) found.say(name + ": the last level must hold all members in one unit");
  if (l > 0 && !last) {
    found.check_size(name + ": out", level.out.size(), units);
    found.check_size(name + ": in", level.in.size(), units);
    found.check_ports(name + ": out of unit", level.out, true);
    found.check_ports(name + ": in of unit", level.in, true);
  }
  if (!level.between.empty()) {
    found.check_size(name + ": between", level.between.size(), units * units);
    found.check_ports(name + ": between", level.between, true);
  }
}

}  // namespace

int32_t Fabric::add_port(std::string name, double rate, double seconds_of_message) {
  bytes_per_second.push_back(rate);
  message_seconds.push_back(seconds_of_message);
  port_name.push_back(std::move(name));
  return static_cast<int32_t>(bytes_per_second.size()) - 1;
}

size_t Fabric::common_level(int64_t from, int64_t to) const {
  for (size_t l = 0; l < levels.size(); ++l)
    if (levels[l].unit[from] == levels[l].unit[to]) return l;
  PIPER_CHECK(false, "the last level of a fabric holds all members");
  return 0;
}

std::vector<int32_t> Fabric::route(int64_t from, int64_t to) const {
  if (from == to) return {};
  const size_t common = common_level(from, to);
  if (common == 0) return {member_out[from], member_in[to]};
  std::vector<int32_t> ports{nic_out[from]};
  const auto add = [&](int32_t port) {
    if (port != kNoPort) ports.push_back(port);
  };
  for (size_t l = 1; l < common; ++l) add(levels[l].out[levels[l].unit[from]]);
  const FabricLevel& below = levels[common - 1];
  if (!below.between.empty())
    add(below.between[static_cast<size_t>(below.unit[from]) * num_units(below) +
                      static_cast<size_t>(below.unit[to])]);
  for (size_t l = common - 1; l > 0; --l) add(levels[l].in[levels[l].unit[to]]);
  ports.push_back(nic_in[to]);
  return ports;
}

double Fabric::latency_seconds(int64_t from, int64_t to) const {
  return from == to ? 0 : levels[common_level(from, to)].latency_seconds;
}

std::vector<std::string> problems_of(const Fabric& fabric) {
  Findings found(fabric);
  const size_t n = fabric.member_out.size();
  for (size_t p = 0; p < fabric.bytes_per_second.size(); ++p) {
    const double rate = fabric.bytes_per_second[p];
    if (!(rate > 0) || !std::isfinite(rate))
      found.say("port " + fabric.port_name[p] + " moves " + std::to_string(rate) +
                " bytes/s; allowed: more than 0");
    found.check_time("a message at port " + fabric.port_name[p], fabric.message_seconds[p]);
  }
  if (fabric.levels.empty()) found.say("a fabric needs at least one level");
  found.check_size("member_in", fabric.member_in.size(), n);
  found.check_size("nic_out", fabric.nic_out.size(), n);
  if (!fabric.processor.empty()) found.check_size("processor", fabric.processor.size(), n);
  if (std::ranges::any_of(fabric.processor, [](int32_t p) { return p < 0; }))
    found.say("a processor below 0");
  found.check_size("nic_in", fabric.nic_in.size(), n);
  const bool one_node = !fabric.levels.empty() && num_units(fabric.levels[0]) == 1;
  found.check_ports("member_out of member", fabric.member_out, false);
  found.check_ports("member_in of member", fabric.member_in, false);
  found.check_ports("nic_out of member", fabric.nic_out, one_node);
  found.check_ports("nic_in of member", fabric.nic_in, one_node);
  for (size_t l = 0; l < fabric.levels.size(); ++l) check_level(fabric, l, found);
  const MessageCosts& costs = fabric.costs;
  found.check_time("send_seconds", costs.send_seconds);
  found.check_time("receive_seconds", costs.receive_seconds);
  found.check_time("local_seconds", costs.local_seconds);
  if (!(costs.local_bytes_per_second >= 0)) found.say("local_bytes_per_second is below 0");
  if (costs.max_in_flight < 0) found.say("max_in_flight is below 0");
  if (costs.packet_bytes < 0) found.say("packet_bytes is below 0");
  if (costs.packets_across < 1) found.say("packets_across is below 1");
  if (costs.packets_on_ports < 0) found.say("packets_on_ports is below 0");
  if (costs.packets_on_ports > 0 && costs.turns != Turns::kByPeer)
    found.say("packets_on_ports needs turns by peer");
  return found.lines;
}

void add_nodes(Fabric& fabric, const std::vector<int32_t>& node, const std::vector<int32_t>& nic,
               const NodePorts& ports) {
  PIPER_CHECK(node.size() == nic.size() && !node.empty() && fabric.levels.empty());
  const bool one_node = std::ranges::max(node) == 0;
  std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, int32_t>> cards;
  for (size_t m = 0; m < node.size(); ++m) {
    const std::string member = "member " + std::to_string(m);
    const auto inner = [&](const char* way) {
      return fabric.add_port(member + way, ports.inner_bytes_per_second,
                             ports.inner_message_seconds);
    };
    fabric.member_out.push_back(inner(", out"));
    fabric.member_in.push_back(inner(", in"));
    auto [card, is_new] =
        cards.try_emplace({node[m], nic[m]}, std::pair<int32_t, int32_t>{kNoPort, kNoPort});
    if (is_new && !one_node) {
      const std::string name =
          "NIC " + std::to_string(nic[m]) + " of node " + std::to_string(node[m]);
      const auto way = [&](const char* direction) {
        return fabric.add_port(name + direction, ports.nic_bytes_per_second,
                               ports.nic_message_seconds);
      };
      card->second = {way(", out"), way(", in")};
    }
    fabric.nic_out.push_back(card->second.first);
    fabric.nic_in.push_back(card->second.second);
  }
  fabric.levels.push_back({.name = "node", .latency_seconds = ports.latency_seconds, .unit = node});
}

void add_links_between(Fabric& fabric, size_t level, double bytes_per_second) {
  PIPER_CHECK(level + 1 < fabric.levels.size());
  const size_t units = num_units(fabric.levels[level]);
  std::vector<int32_t> outer(units);
  for (size_t m = 0; m < fabric.member_out.size(); ++m)
    outer[static_cast<size_t>(fabric.levels[level].unit[m])] = fabric.levels[level + 1].unit[m];
  std::vector<int32_t> between(units * units, kNoPort);
  for (size_t from = 0; from < units; ++from)
    for (size_t to = 0; to < units; ++to)
      if (from != to && outer[from] == outer[to])
        between[from * units + to] = fabric.add_port(
            fabric.levels[level].name + " " + std::to_string(from) + " to " + std::to_string(to),
            bytes_per_second);
  fabric.levels[level].between = std::move(between);
}

}  // namespace piper::sim
