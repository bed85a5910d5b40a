#include <piper/base/error.h>
#include <piper/cost/exchange_time.h>

#include <algorithm>

namespace piper::cost {
namespace {

double message_gap(const cluster::Cluster& cluster) {
  return cluster.number("message_gap_seconds", kMessageGapSeconds);
}

// Inside one node, where the exchange itself was measured (`bytes`: of one member to all others).
double measured_all_to_all(const cluster::Cluster& cluster, double bytes) {
  if (cluster.watch) cluster.watch->note_link("all-to-all", bytes);
  return cluster.number("all_to_all_latency_seconds") +
         bytes / cluster.number("all_to_all_bytes_per_second", 1);
}

bool has_measured_all_to_all(const cluster::Cluster& cluster) {
  return cluster.numbers.contains("all_to_all_bytes_per_second");
}

// The latency of the farthest way, and the gaps between messages that leave the innermost level.
double start_seconds(const cluster::Cluster& cluster, const Traffic& traffic) {
  PIPER_CHECK(cluster.levels.size() <= kMaxLevels);
  double latency = 0, outer_messages = 0;
  for (size_t level = cluster.levels.size(); level-- > 0;) {
    if (traffic.messages[level] == 0) continue;
    if (latency == 0) latency = cluster.levels[level].link.latency_seconds;
    if (level > 0) outer_messages += traffic.messages[level];
  }
  return latency + std::max(0.0, outer_messages - 1) * message_gap(cluster);
}

double seconds_of(const cluster::Cluster& cluster, const Traffic& traffic) {
  double transfer = 0;
  for (size_t level = 0; level < cluster.levels.size(); ++level)
    transfer = std::max(transfer, busy_seconds(cluster, traffic, level));
  return start_seconds(cluster, traffic) + transfer;
}

// An uneven exchange, member by member.
class Uneven {
 public:
  explicit Uneven(const cluster::Cluster& cluster)
      : cluster_(cluster), sent_(cluster), received_(cluster) {}

  void add(const TwoWays& ways, int64_t device) {
    for (const Traffic* traffic : {&ways.sent, &ways.received}) {
      start_ = std::max(start_, start_seconds(cluster_, *traffic));
      inside_ = std::max(inside_, traffic->bytes[0]);
    }
    sent_.add(ways.sent, device);
    received_.add(ways.received, device);
  }
  double seconds() const { return start_ + std::max(sent_.longest(), received_.longest()); }
  double measured() const { return measured_all_to_all(cluster_, inside_); }

 private:
  const cluster::Cluster& cluster_;
  PortSeconds sent_, received_;
  double start_ = 0, inside_ = 0;
};

bool in_one_node(const cluster::Cluster& cluster, const Group& group) {
  const int64_t node = cluster.devices_per_node();
  return group.first / node == group.device(group.size - 1) / node;
}

}  // namespace

double device_bandwidth(const cluster::Cluster& cluster, size_t level) {
  const cluster::Level& l = cluster.levels[level];
  double bandwidth = l.link.bytes_per_second;
  if (l.num_nics > 0 && l.nic_bytes_per_second > 0) {
    const int64_t sharing = level == 0 ? 1 : cluster.devices_of_level(level - 1);
    bandwidth = std::min(bandwidth, static_cast<double>(l.num_nics) * l.nic_bytes_per_second /
                                        static_cast<double>(sharing));
  }
  return bandwidth;
}

int64_t devices_of_port(const cluster::Cluster& cluster, size_t level) {
  if (level == 0) return 1;
  const int64_t devices = cluster.devices_of_level(level - 1);
  const int64_t nics = cluster.levels[level].num_nics;
  if (nics == 0) return devices;
  if (nics >= devices) return 1;
  return devices % nics == 0 ? devices / nics : devices;
}

double busy_seconds(const cluster::Cluster& cluster, const Traffic& traffic, size_t level) {
  double across = traffic.bytes[level];
  for (size_t outer = level + 1; level > 0 && outer < cluster.levels.size(); ++outer)
    across += traffic.bytes[outer];
  return across / device_bandwidth(cluster, level);
}

void PortSeconds::add(const Traffic& traffic, int64_t device) {
  for (size_t level = 0; level < cluster_.levels.size(); ++level) {
    Port& port = current_[level];
    const int64_t number = device / devices_of_port(cluster_, level);
    if (number != port.number) {
      longest_ = std::max(longest_, port.shared());
      port = {.number = number};
    }
    const double busy = busy_seconds(cluster_, traffic, level);
    port.seconds += busy;
    port.members += 1;
  }
}

double PortSeconds::longest() const {
  double longest = longest_;
  for (const Port& port : current_) longest = std::max(longest, port.shared());
  return longest;
}

int64_t Group::before(int64_t device) const {
  const auto in_run = [&](int64_t distance, int64_t members) {
    return std::clamp<int64_t>((distance + stride - 1) / stride, 0, members);
  };
  const int64_t distance = std::max<int64_t>(0, device - first);
  if (run == 0) return in_run(distance, size);
  return std::min(size, distance / jump * run + in_run(distance % jump, run));
}

bool Group::divides_by(int64_t step) const {
  return run == 0 || step % run == 0 || run % step == 0;
}

Group Group::part(int64_t begin, int64_t step, int64_t count) const {
  const int64_t at = device(begin);
  if (run == 0 || begin % run + (count - 1) * step < run) return {at, stride * step, count};
  if (step % run == 0) return {at, jump * (step / run), count};
  return {at, stride * step, count, run / step, jump};
}

namespace {

// Calls visit(level, first, last, inner_first, inner_last) for every level at which `self` has
// partners: members first..last are in its unit of the level, inner_first..inner_last (oneself
// included) in that of the level below.
template <class F>
void for_each_level(const cluster::Cluster& cluster, const Group& group, int64_t self, F visit) {
  int64_t unit = 1, inner_first = self, inner_last = self;
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    unit *= cluster.levels[level].num_members;
    const int64_t begin = group.device(self) / unit * unit;
    const int64_t first = group.before(begin), last = group.before(begin + unit) - 1;
    if (last - first > inner_last - inner_first) visit(level, first, last, inner_first, inner_last);
    inner_first = first;
    inner_last = last;
    if (last - first + 1 == group.size) return;
  }
  PIPER_CHECK(false, "a group reaches beyond the cluster");
}

}  // namespace

Traffic even_traffic(const cluster::Cluster& cluster, const Group& group, int64_t self,
                     double pair_bytes) {
  Traffic traffic;
  if (group.size == 1) return traffic;
  for_each_level(cluster, group, self,
                 [&](size_t level, int64_t first, int64_t last, int64_t in_first, int64_t in_last) {
                   traffic.add(level, pair_bytes,
                               static_cast<double>((last - first) - (in_last - in_first)));
                 });
  return traffic;
}

UnevenTraffic::UnevenTraffic(const cluster::Cluster& cluster, const Group& group,
                             std::span<const double> to_bytes)
    : cluster_(cluster), group_(group), before_{0} {
  PIPER_CHECK(std::ssize(to_bytes) == group.size, "one entry for every member");
  for (const double bytes : to_bytes) before_.push_back(before_.back() + bytes);
}

TwoWays UnevenTraffic::of(int64_t member) const {
  TwoWays ways;
  const auto to = [&](int64_t first, int64_t last) {
    return before_[static_cast<size_t>(last + 1)] - before_[static_cast<size_t>(first)];
  };
  const double own = to(member, member);
  for_each_level(cluster_, group_, member,
                 [&](size_t level, int64_t first, int64_t last, int64_t in_first, int64_t in_last) {
                   const auto count = static_cast<double>((last - first) - (in_last - in_first));
                   ways.received.add(level, own, count);
                   ways.sent.messages[level] += count;
                   ways.sent.bytes[level] += std::max(0.0, to(first, last) - to(in_first, in_last));
                 });
  return ways;
}

namespace {

// Calls visit(first, last) for the parts of first..last, without inner_first..inner_last, that lie
// in begin..begin + count - 1 on a ring of n members.
template <class F>
void for_each_part(int64_t n, int64_t begin, int64_t count, int64_t first, int64_t last,
                   int64_t inner_first, int64_t inner_last, F visit) {
  const int64_t wrapped = (begin % n + n) % n;
  for (const int64_t from : {wrapped, wrapped - n}) {
    const auto cut = [&](int64_t low, int64_t high) {
      const int64_t a = std::max(low, from), b = std::min(high, from + count - 1);
      if (a <= b) visit(a, b);
    };
    cut(first, inner_first - 1);
    cut(inner_last + 1, last);
  }
}

}  // namespace

TwoWays UnevenTraffic::of(int64_t member, const strategy::TokenChunk& distances) const {
  TwoWays ways;
  const double own =
      before_[static_cast<size_t>(member + 1)] - before_[static_cast<size_t>(member)];
  const auto [near, count] = distances;
  for_each_level(cluster_, group_, member,
                 [&](size_t level, int64_t first, int64_t last, int64_t in_first, int64_t in_last) {
                   for_each_part(group_.size, member + near, count, first, last, in_first, in_last,
                                 [&](int64_t a, int64_t b) {
                                   ways.sent.messages[level] += static_cast<double>(b - a + 1);
                                   ways.sent.bytes[level] += before_[static_cast<size_t>(b + 1)] -
                                                             before_[static_cast<size_t>(a)];
                                 });
                   for_each_part(group_.size, member - near - count + 1, count, first, last,
                                 in_first, in_last, [&](int64_t a, int64_t b) {
                                   ways.received.add(level, own, static_cast<double>(b - a + 1));
                                 });
                 });
  return ways;
}

bool is_measured_all_to_all(const cluster::Cluster& cluster, const Group& group) {
  return has_measured_all_to_all(cluster) && in_one_node(cluster, group);
}

bool is_measured_all_reduce(const cluster::Cluster& cluster, const Group& group) {
  return cluster.numbers.contains("all_reduce_bytes_per_second") && in_one_node(cluster, group);
}

double all_to_all_seconds(const cluster::Cluster& cluster, const Group& group, double pair_bytes) {
  if (group.size <= 1) return 0;
  if (is_measured_all_to_all(cluster, group))
    return measured_all_to_all(cluster, pair_bytes * static_cast<double>(group.size - 1));
  double seconds = 0;
  // The ends of a group that is not aligned with the units have the fewest neighbours near by.
  for (const int64_t self : {int64_t{0}, group.size - 1})
    seconds =
        std::max(seconds, seconds_of(cluster, even_traffic(cluster, group, self, pair_bytes)));
  return seconds;
}

double all_to_all_seconds(const cluster::Cluster& cluster, std::span<const Rank> members,
                          std::span<const double> bytes) {
  const size_t n = members.size();
  PIPER_CHECK(bytes.size() == n * n, "one entry for every pair");
  const int64_t node = cluster.devices_per_node();
  const bool measured = has_measured_all_to_all(cluster) &&
                        members.front().value / node == members.back().value / node;
  Uneven uneven(cluster);
  for (size_t self = 0; self < n && n > 1; ++self) {
    TwoWays ways;
    for (size_t peer = 0; peer < n; ++peer) {
      if (peer == self) continue;
      const size_t level = cluster.common_level(members[self].value, members[peer].value);
      // A pair without bytes has no message.
      if (bytes[self * n + peer] > 0) ways.sent.add(level, bytes[self * n + peer]);
      if (bytes[peer * n + self] > 0) ways.received.add(level, bytes[peer * n + self]);
    }
    uneven.add(ways, members[self].value);
  }
  return n <= 1 ? 0 : measured ? uneven.measured() : uneven.seconds();
}

double all_to_all_seconds(const cluster::Cluster& cluster, const Group& group,
                          std::span<const double> to_bytes) {
  if (group.size <= 1) return 0;
  const UnevenTraffic traffic(cluster, group, to_bytes);
  Uneven uneven(cluster);
  for (int64_t member = 0; member < group.size; ++member)
    uneven.add(traffic.of(member), group.device(member));
  return is_measured_all_to_all(cluster, group) ? uneven.measured() : uneven.seconds();
}

double all_to_all_seconds(const cluster::Cluster& cluster, const Group& group,
                          std::span<const double> to_bytes, const strategy::TokenChunk& distances) {
  if (group.size <= 1 || distances.count == 0 || (distances.first == 0 && distances.count == 1))
    return 0;
  const UnevenTraffic traffic(cluster, group, to_bytes);
  Uneven uneven(cluster);
  for (int64_t member = 0; member < group.size; ++member)
    uneven.add(traffic.of(member, distances), group.device(member));
  return is_measured_all_to_all(cluster, group) ? uneven.measured() : uneven.seconds();
}

namespace {

// On the node of its first member.
int64_t members_of_node(const cluster::Cluster& cluster, const Group& group) {
  const int64_t node = cluster.devices_per_node();
  if (group.run == 0) return std::clamp<int64_t>(node / group.stride, 1, group.size);
  return group.before((group.first / node + 1) * node);
}

}  // namespace

ReductionWays reduction_ways(const cluster::Cluster& cluster, const Group& group, double bytes,
                             strategy::Reduction algorithm) {
  const int64_t here = members_of_node(cluster, group);
  const auto share = [&](int64_t members) { return bytes / static_cast<double>(members); };
  const bool flat = algorithm == strategy::Reduction::kDirect || here == 1 || here == group.size ||
                    group.size % here != 0 || !group.divides_by(here);
  if (flat) return {.inside = {.group = {.size = 1}}, .across = {group, share(group.size)}};
  return {.inside = {group.part(0, 1, here), share(here)},
          .across = {group.part(0, here, group.size / here), share(group.size)}};
}

double reduction_seconds(double inside, double across, double bytes) {
  const bool one_piece = bytes <= kReductionPieceBytes;
  if (inside <= 0 || across <= 0 || one_piece) return inside + across;
  return std::max({inside, across, (inside + across) / 2});
}

double all_reduce_seconds(const cluster::Cluster& cluster, const Group& group, double bytes,
                          strategy::Reduction algorithm) {
  if (group.size <= 1 || bytes <= 0) return 0;
  if (is_measured_all_reduce(cluster, group)) {
    const double others = bytes - bytes / static_cast<double>(group.size);
    if (cluster.watch) cluster.watch->note_link("all-reduce", others);
    return cluster.number("all_reduce_latency_seconds") +
           others / cluster.number("all_reduce_bytes_per_second", 1);
  }
  const ReductionWays ways = reduction_ways(cluster, group, bytes, algorithm);
  const auto seconds = [&](const ReductionWay& way) {
    return 2 * all_to_all_seconds(cluster, way.group, way.pair_bytes);
  };
  const auto added = [&](const ReductionWay& way) {  // two reads and a write of each
    const double rate = cluster.element_wise.empty()
                            ? cluster.memory_bytes_per_second
                            : cluster.element_wise.at({3 * way.pair_bytes});
    return 3 * way.pair_bytes * static_cast<double>(way.group.size - 1) / rate;
  };
  double total = reduction_seconds(seconds(ways.inside), seconds(ways.across), bytes);
  for (const ReductionWay* way : {&ways.inside, &ways.across})
    if (way->group.size > 1) total += added(*way);
  // Sums of sums are added one after another; directly they come in pieces, one behind the other.
  if (ways.inside.group.size > 1)
    total += static_cast<double>(ways.inside.group.size + ways.across.group.size - 2) *
             cluster.fixed_task_seconds;
  return total;
}

namespace {

double half_seconds(const cluster::Cluster& cluster, const Group& group, double bytes,
                    strategy::Reduction algorithm, const std::string& half, const char* curve) {
  if (group.size <= 1 || bytes <= 0) return 0;
  if (!cluster.numbers.contains(half + "_bytes_per_second") ||
      !is_measured_all_reduce(cluster, group))
    return all_reduce_seconds(cluster, group, bytes, algorithm) / 2;
  const double others = bytes - bytes / static_cast<double>(group.size);
  if (cluster.watch) cluster.watch->note_link(curve, others);
  return cluster.number(half + "_latency_seconds") +
         others / cluster.number(half + "_bytes_per_second", 1);
}

}  // namespace

double reduce_scatter_seconds(const cluster::Cluster& cluster, const Group& group, double bytes,
                              strategy::Reduction algorithm) {
  return half_seconds(cluster, group, bytes, algorithm, "reduce_scatter", "reduce-scatter");
}

double all_gather_seconds(const cluster::Cluster& cluster, const Group& group, double bytes,
                          strategy::Reduction algorithm) {
  return half_seconds(cluster, group, bytes, algorithm, "all_gather", "all-gather");
}

double exchange_counts_seconds(const cluster::Cluster& cluster, const Group& group,
                               int64_t num_counts) {
  return all_to_all_seconds(cluster, group, 8.0 * static_cast<double>(num_counts));
}

double point_to_point_seconds(const cluster::Cluster& cluster, int64_t from, int64_t to,
                              double bytes) {
  if (from == to) return 0;
  Traffic traffic;
  const size_t level = cluster.common_level(from, to);
  if (cluster.watch && level == 0) cluster.watch->note_link("point-to-point", bytes);
  traffic.add(level, bytes);
  return seconds_of(cluster, traffic);
}

double ring_hop_seconds(const cluster::Cluster& cluster, const Group& group, double bytes) {
  if (group.size == 1) return 0;
  const auto others = static_cast<double>(group.size - 1);
  double seconds = all_reduce_seconds(cluster, group, (others + 1) * bytes) / 2 / others;
  for (int64_t i = 0; i < group.size; ++i)
    seconds = std::max(seconds, point_to_point_seconds(cluster, group.device(i),
                                                       group.device((i + 1) % group.size), bytes));
  return seconds;
}

Group group_of(std::span<const Rank> members) {
  PIPER_CHECK(!members.empty());
  Group group{.first = members[0].value, .size = static_cast<int64_t>(members.size())};
  if (group.size > 1) group.stride = members[1].value - members[0].value;
  const auto value = [&](int64_t i) { return members[static_cast<size_t>(i)].value; };
  int64_t run = 1;
  while (run < group.size && value(run) == group.device(run)) ++run;
  if (run < group.size) {
    group.run = run;
    group.jump = value(run) - group.first;
  }
  for (int64_t i = 0; i < group.size; ++i)
    PIPER_CHECK(value(i) == group.device(i), "members in runs that are equally spaced");
  return group;
}

Group group_of(const strategy::RankLayout& layout, strategy::Axis axis, Rank rank) {
  const strategy::Members members = layout.members(axis, layout.member(rank));
  const int64_t together = layout.num_together(), stage = layout.stage(rank),
                in_block = together / members.stride;  // of the group, where it has more than one
  Group group{.first = layout.rank(stage, members.first).value,
              .stride = members.stride,
              .size = members.size};
  if (members.size == 1) return group;
  const int64_t next = layout.distance_of_blocks();
  if (in_block <= 1) {
    group.stride = members.stride / together * next;
  } else if (in_block < members.size) {
    group.run = in_block;
    group.jump = next;
  }
  return group;
}

}  // namespace piper::cost
