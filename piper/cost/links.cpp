#include <piper/base/error.h>
#include <piper/cost/links.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace piper::cost {

namespace {

// Units of a level that the devices lie in, numbered as they first appear.
std::vector<int32_t> units_of(std::span<const int64_t> devices, int64_t devices_of_unit) {
  std::map<int64_t, int32_t> number;
  std::vector<int32_t> units;
  for (const int64_t device : devices)
    units.push_back(
        number.try_emplace(device / devices_of_unit, static_cast<int32_t>(number.size()))
            .first->second);
  return units;
}

}  // namespace

collective::Topology topology_of(const cluster::Cluster& cluster,
                                 std::span<const int64_t> devices) {
  collective::Topology topology;
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    std::vector<int32_t> units = units_of(devices, cluster.devices_of_level(level));
    const bool tells_apart = std::ranges::any_of(units, [](int32_t unit) { return unit > 0; });
    if (level > 0 && (!tells_apart || units == topology.unit.back())) continue;
    topology.unit.push_back(std::move(units));
  }
  for (const int64_t device : devices)
    topology.nic.push_back(cluster.levels.size() < 2
                               ? 0
                               : static_cast<int32_t>(device % cluster.devices_per_node() /
                                                      devices_of_port(cluster, 1)));
  return topology;
}

collective::Topology topology_of_ranks(const cluster::Cluster& cluster, int64_t num_ranks) {
  std::vector<int64_t> devices(static_cast<size_t>(num_ranks));
  std::iota(devices.begin(), devices.end(), 0);
  return topology_of(cluster, devices);
}

Ports::Ports(const cluster::Cluster& cluster, std::vector<char> is_here)
    : cluster_(cluster), is_here_(std::move(is_here)) {
  const auto world = static_cast<int64_t>(is_here_.size());
  const int64_t here = std::max<int64_t>(1, std::count(is_here_.begin(), is_here_.end(), 1));
  const double stands_for = static_cast<double>(world) / static_cast<double>(here);
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    const int64_t devices = devices_of_port(cluster, level);
    devices_of_port_.push_back(devices);
    first_port_.push_back(std::ssize(capacity_));
    const double shares =
        static_cast<double>(devices) / std::min(static_cast<double>(devices), stands_for);
    const int64_t num_ports = 2 * ((world + devices - 1) / devices);
    // Every rank that stands for others has its share, also where those of several stages meet at a
    // port.
    std::vector<int64_t> present(static_cast<size_t>(num_ports / 2));
    for (int64_t rank = 0; rank < world && stands_for > 1; ++rank)
      present[static_cast<size_t>(rank / devices)] += is_here_[static_cast<size_t>(rank)];
    for (int64_t i = 0; i < num_ports; ++i)
      capacity_.push_back(
          std::llround(std::max(shares, static_cast<double>(present[static_cast<size_t>(i / 2)])) *
                       static_cast<double>(kWholeShare)));
  }
}

int32_t Ports::port(size_t level, int64_t device, Direction direction) const {
  return static_cast<int32_t>(first_port_[level] + 2 * (device / devices_of_port_[level]) +
                              direction);
}

void Ports::add(const Traffic& traffic, int64_t device, Direction direction, Uses& uses) const {
  for (size_t level = 0; level < cluster_.levels.size(); ++level) {
    const double seconds = busy_seconds(cluster_, traffic, level);
    if (seconds <= 0) continue;
    uses.longest = std::max(uses.longest, seconds);
    if (is_here_[static_cast<size_t>(device)])
      uses.seconds.emplace_back(port(level, device, direction), seconds);
  }
}

Transfer Ports::finish(Uses uses) const {
  Transfer transfer{.seconds = uses.longest, .needs = {}};
  std::ranges::sort(uses.seconds);
  for (size_t i = 0; i < uses.seconds.size();) {
    const int32_t port = uses.seconds[i].first;
    double seconds = 0;
    for (; i < uses.seconds.size() && uses.seconds[i].first == port; ++i)
      seconds += uses.seconds[i].second;
    // Rounded down: alone, an operation never needs more than there is; also where only some of
    // those that share a port in turn are here.
    const double part = seconds / uses.longest;
    if (part >= kLeastTransfer)
      transfer.needs.push_back(
          {port, std::min(static_cast<PortUnits>(part * static_cast<double>(kWholeShare)),
                          capacity_[static_cast<size_t>(port)])});
  }
  return transfer;
}

// Such bytes that the own port is busy as long as the measured exchange takes.
void Ports::as_measured(Traffic& sent, Traffic& received) const {
  const double as_link =
      device_bandwidth(cluster_, 0) / cluster_.numbers.at("all_to_all_bytes_per_second");
  sent.bytes[0] *= as_link;
  received.bytes[0] *= as_link;
}

Transfer Ports::measured(const Group& group, double seconds) const {
  Traffic traffic;
  traffic.add(0, seconds * device_bandwidth(cluster_, 0));
  Uses uses;
  for (int64_t member = 0; member < group.size; ++member)
    for (const Direction direction : {kOut, kIn})
      add(traffic, group.device(member), direction, uses);
  return finish(std::move(uses));
}

// Members behind one port may each be busier than the port is: what counts is all of them.
class Ports::Uneven {
 public:
  Uneven(const Ports& ports, bool measured)
      : ports_(ports), measured_(measured), sent_(ports.cluster_), received_(ports.cluster_) {}

  void add(TwoWays ways, int64_t device) {
    if (measured_) ports_.as_measured(ways.sent, ways.received);
    sent_.add(ways.sent, device);
    received_.add(ways.received, device);
    ports_.add(ways.sent, device, kOut, uses_);
    ports_.add(ways.received, device, kIn, uses_);
  }
  Transfer take() {
    uses_.longest = std::max(sent_.longest(), received_.longest());
    return uses_.longest > 0 ? ports_.finish(std::move(uses_)) : Transfer{};
  }

 private:
  const Ports& ports_;
  bool measured_;
  PortSeconds sent_, received_;
  Uses uses_;
};

Transfer Ports::all_to_all(const Group& group, double pair_bytes) const {
  if (group.size <= 1 || pair_bytes <= 0) return {};
  if (is_measured_all_to_all(cluster_, group))
    return measured(group, pair_bytes * static_cast<double>(group.size - 1) /
                               cluster_.numbers.at("all_to_all_bytes_per_second"));
  Uses uses;
  for (int64_t member = 0; member < group.size; ++member) {
    const int64_t device = group.device(member);
    const bool is_end = member == 0 || member + 1 == group.size;  // the ends are the slowest
    if (!is_end && !is_here_[static_cast<size_t>(device)]) continue;
    const Traffic traffic = even_traffic(cluster_, group, member, pair_bytes);
    for (const Direction direction : {kOut, kIn}) add(traffic, device, direction, uses);
  }
  return finish(std::move(uses));
}

Transfer Ports::all_to_all(std::span<const Rank> members, std::span<const double> bytes) const {
  const size_t n = members.size();
  PIPER_CHECK(bytes.size() == n * n, "one entry for every pair");
  if (n <= 1) return {};
  const int64_t node = cluster_.devices_per_node();
  const bool measured = cluster_.numbers.contains("all_to_all_bytes_per_second") &&
                        members.front().value / node == members.back().value / node;
  Uneven uneven(*this, measured);
  for (size_t self = 0; self < n; ++self) {
    TwoWays ways;
    for (size_t peer = 0; peer < n; ++peer) {
      if (peer == self) continue;
      const size_t level = cluster_.common_level(members[self].value, members[peer].value);
      ways.sent.add(level, bytes[self * n + peer]);
      ways.received.add(level, bytes[peer * n + self]);
    }
    uneven.add(std::move(ways), members[self].value);
  }
  return uneven.take();
}

Transfer Ports::all_to_all(const Group& group, std::span<const double> to_bytes) const {
  if (group.size <= 1) return {};
  Uneven uneven(*this, is_measured_all_to_all(cluster_, group));
  const UnevenTraffic traffic(cluster_, group, to_bytes);
  for (int64_t member = 0; member < group.size; ++member)
    uneven.add(traffic.of(member), group.device(member));
  return uneven.take();
}

Transfer Ports::all_reduce(const Group& group, double bytes, strategy::Reduction algorithm) const {
  if (group.size <= 1 || bytes <= 0) return {};
  if (is_measured_all_reduce(cluster_, group)) {
    const double share = bytes / static_cast<double>(group.size);
    return measured(group, (bytes - share) / cluster_.numbers.at("all_reduce_bytes_per_second"));
  }
  const ReductionWays ways = reduction_ways(cluster_, group, bytes, algorithm);
  if (ways.inside.group.size <= 1) {
    Transfer transfer = all_to_all(group, ways.across.pair_bytes);
    transfer.seconds *= 2;  // scattered and gathered
    return transfer;
  }
  return in_two_ways(group, ways, bytes);
}

// Each member inside its node, and with its counterparts beyond.
Transfer Ports::in_two_ways(const Group& group, const ReductionWays& ways, double bytes) const {
  Uses inside, across;
  const int64_t here = ways.inside.group.size;
  for (int64_t member = 0; member < group.size; ++member) {
    const int64_t device = group.device(member), place = member % here, node = member / here;
    const Group mates = group.part(member - place, 1, here);
    const Group counterparts = group.part(place, here, group.size / here);
    for (const Direction direction : {kOut, kIn}) {
      add(even_traffic(cluster_, mates, place, ways.inside.pair_bytes), device, direction, inside);
      add(even_traffic(cluster_, counterparts, node, ways.across.pair_bytes), device, direction,
          across);
    }
  }
  Uses both = inside;
  both.seconds.insert(both.seconds.end(), across.seconds.begin(), across.seconds.end());
  both.longest = reduction_seconds(inside.longest, across.longest, bytes);
  Transfer transfer = finish(std::move(both));
  transfer.seconds *= 2;
  return transfer;
}

Transfer Ports::message(Rank from, Rank to, double bytes) const {
  if (from == to || bytes <= 0) return {};
  Traffic traffic;
  traffic.add(cluster_.common_level(from.value, to.value), bytes);
  Uses uses;
  add(traffic, from.value, kOut, uses);
  add(traffic, to.value, kIn, uses);
  return finish(std::move(uses));
}

void Ports::add(std::span<const double> part, int64_t device, Direction direction,
                Uses& uses) const {
  for (size_t level = 0; level < cluster_.levels.size(); ++level) {
    if (part[level] <= 0) continue;
    uses.longest = std::max(uses.longest, part[level]);
    if (is_here_[static_cast<size_t>(device)])
      uses.seconds.emplace_back(port(level, device, direction), part[level]);
  }
}

Transfer Ports::among(std::span<const Rank> members, std::span<const double> part,
                      double seconds) const {
  Uses uses;
  for (const Rank member : members)
    for (const Direction direction : {kOut, kIn}) add(part, member.value, direction, uses);
  Transfer transfer = finish(std::move(uses));
  transfer.seconds = seconds;
  return transfer;
}

Transfer Ports::message(Rank from, Rank to, std::span<const double> part, double seconds) const {
  Uses uses;
  add(part, from.value, kOut, uses);
  add(part, to.value, kIn, uses);
  Transfer transfer = finish(std::move(uses));
  transfer.seconds = seconds;
  return transfer;
}

}  // namespace piper::cost
