#include <piper/cost/gradient_reduction_overlap.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>

namespace piper::cost {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Operations of one class go at one speed: each ends when the class has moved so much.
struct Class {
  const LevelUtilization* needs = nullptr;
  double moved = 0, rate = 1;
  std::vector<std::pair<double, double>> ends;  // in `moved`, and the latency after; descending
  void add(const CommTime& moves) {
    const std::pair end(moved + moves.transfer, moves.latency);
    ends.insert(std::ranges::upper_bound(ends, end, std::greater<>()), end);
  }
};

class Device {
 public:
  Device(size_t num_levels, const LastBackwardNeeds& needs) : num_levels_(num_levels) {
    of(kDense).needs = &needs.dense;
    of(kExperts).needs = &needs.experts;
    of(kExchange).needs = &needs.exchange;
    of(kMessage).needs = &needs.message;
  }

  enum Kind : uint8_t { kDense, kExperts, kExchange, kMessage };

  double now() const { return now_; }
  double last_end() const { return last_end_; }  // of anything that has ended

  void start(Kind kind, const CommTime& moves) {
    if (moves.transfer <= 0) {
      if (moves.latency > 0) last_end_ = std::max(last_end_, now_ + moves.latency);
      return;
    }
    of(kind).add(moves);
    share();
  }
  void pass(double seconds) {
    for (const double until = now_ + seconds; now_ < until;) step(until);
  }
  // Until the one operation of a class has ended.
  void wait_for(Kind kind) {
    while (!of(kind).ends.empty()) step(kNever);
  }
  // Starts when all that was queued before has ended.
  void queue(Kind kind, const CommTime& moves) {
    queue_.emplace_back(kind, moves);
    start_queued();
  }
  // Until all that was queued has started.
  void wait_for_queue() {
    while (!queue_.empty()) step(kNever);
  }
  void finish() {
    const auto moves = [](const Class& c) { return !c.ends.empty(); };
    while (std::ranges::any_of(classes_, moves)) step(kNever);
  }

 private:
  Class& of(Kind kind) { return classes_[kind]; }

  bool reduces() { return !of(kDense).ends.empty() || !of(kExperts).ends.empty(); }
  void start_queued() {
    while (!queue_.empty() && !reduces() && now_ >= free_at_) {
      const auto [kind, moves] = queue_.front();
      queue_.pop_front();
      if (moves.transfer <= 0) free_at_ = now_ + moves.latency;
      start(kind, moves);
    }
  }

  void share() {
    std::array<double, kMaxLevels> part{};
    for (size_t level = 0; level < num_levels_; ++level) {
      double needed = 0;
      for (const Class& c : classes_)
        needed += static_cast<double>(c.ends.size()) * c.needs->part[level];
      part[level] = 1 / std::max(1.0, needed);
    }
    for (Class& c : classes_) {
      c.rate = 1;
      for (size_t level = 0; level < num_levels_; ++level)
        if (c.needs->part[level] > 0) c.rate = std::min(c.rate, part[level]);
    }
  }

  // To the next end of an operation, at most until `until`.
  void step(double until) {
    double next = until;
    const Class* first = nullptr;
    const bool waits = !queue_.empty() && !reduces();  // for the latency of the one before
    if (waits) next = std::min(next, free_at_);
    for (const Class& c : classes_) {
      if (c.ends.empty()) continue;
      const double end = now_ + std::max(0.0, c.ends.back().first - c.moved) / c.rate;
      if (end >= next) continue;
      next = end;
      first = &c;
    }
    for (Class& c : classes_) {
      if (!c.ends.empty()) c.moved += (next - now_) * c.rate;
      if (&c != first) continue;
      c.moved = c.ends.back().first;
      last_end_ = std::max(last_end_, next + c.ends.back().second);
      if (&c == &of(kDense) || &c == &of(kExperts)) free_at_ = next + c.ends.back().second;
      c.ends.pop_back();
    }
    now_ = next;
    if (first != nullptr) share();
    start_queued();
  }

  size_t num_levels_;
  double now_ = 0, last_end_ = 0;
  std::array<Class, 4> classes_;
  std::deque<std::pair<Kind, CommTime>> queue_;
  double free_at_ = 0;  // when the last reduction, with its latency, has ended
};

}  // namespace

LevelUtilization level_needs(const cluster::Cluster& cluster, const Traffic& traffic) {
  LevelUtilization needs;
  double longest = 0;
  for (size_t level = 0; level < cluster.levels.size(); ++level)
    longest = std::max(longest, needs.part[level] = busy_seconds(cluster, traffic, level));
  for (double& part : needs.part) part = longest > 0 ? part / longest : 0;
  return needs;
}

namespace {

double longest_busy(const cluster::Cluster& cluster, const Traffic& traffic) {
  double longest = 0;
  for (size_t level = 0; level < cluster.levels.size(); ++level)
    longest = std::max(longest, busy_seconds(cluster, traffic, level));
  return longest;
}

CommTime moves(double price, double transfer) {
  transfer = std::min(price, transfer);
  return {.latency = price - transfer, .transfer = transfer};
}

}  // namespace

CommTime all_to_all_moves(const cluster::Cluster& cluster, const Group& group, double pair_bytes) {
  if (group.size <= 1 || pair_bytes <= 0) return {};
  const double price = all_to_all_seconds(cluster, group, pair_bytes);
  if (is_measured_all_to_all(cluster, group))
    return moves(price, pair_bytes * static_cast<double>(group.size - 1) /
                            cluster.numbers.at("all_to_all_bytes_per_second"));
  return moves(price, longest_busy(cluster, even_traffic(cluster, group, 0, pair_bytes)));
}

namespace {

// The seconds that one end of each of a reduction's ways keeps its shares busy.
struct BusyWays {
  double inside = 0, across = 0;
  double together(double bytes) const { return 2 * reduction_seconds(inside, across, bytes); }
};

BusyWays busy_ways(const cluster::Cluster& cluster, const ReductionWays& ways) {
  const auto busy = [&](const ReductionWay& way) {
    return way.group.size <= 1
               ? 0
               : longest_busy(cluster, even_traffic(cluster, way.group, 0, way.pair_bytes));
  };
  return {busy(ways.inside), busy(ways.across)};
}

}  // namespace

CommTime all_reduce_moves(const cluster::Cluster& cluster, const Group& group, double bytes,
                          strategy::Reduction algorithm) {
  if (group.size <= 1 || bytes <= 0) return {};
  const double price = all_reduce_seconds(cluster, group, bytes, algorithm);
  if (is_measured_all_reduce(cluster, group)) {
    const double share = bytes / static_cast<double>(group.size);
    return moves(price, (bytes - share) / cluster.numbers.at("all_reduce_bytes_per_second"));
  }
  return moves(
      price, busy_ways(cluster, reduction_ways(cluster, group, bytes, algorithm)).together(bytes));
}

LevelUtilization all_reduce_needs(const cluster::Cluster& cluster, const Group& group,
                                  strategy::Reduction algorithm) {
  if (group.size <= 1) return {};
  if (is_measured_all_reduce(cluster, group)) return {{1}};
  const double bytes = 4 * kReductionPieceBytes;  // in pieces, as all that take long
  const ReductionWays ways = reduction_ways(cluster, group, bytes, algorithm);
  if (ways.inside.group.size <= 1) return level_needs(cluster, even_traffic(cluster, group, 0, 1));
  const double together = busy_ways(cluster, ways).together(bytes) / 2;
  const Traffic inside = even_traffic(cluster, ways.inside.group, 0, ways.inside.pair_bytes);
  const Traffic across = even_traffic(cluster, ways.across.group, 0, ways.across.pair_bytes);
  LevelUtilization needs;
  for (size_t level = 0; level < cluster.levels.size(); ++level)
    needs.part[level] =
        (busy_seconds(cluster, inside, level) + busy_seconds(cluster, across, level)) / together;
  return needs;
}

LastBackward last_backward(size_t num_levels, const LastBackwardNeeds& needs,
                           const std::vector<BackwardTurn>& turns, const CommTime& message,
                           strategy::ReductionStart start) {
  using strategy::ReductionStart;
  Device device(num_levels, needs);
  double plain = 0;
  std::deque<std::pair<Device::Kind, CommTime>> held_back;
  const auto let_pass = [&](size_t most) {
    for (; !held_back.empty() && most > 0; --most) {
      device.queue(held_back.front().first, held_back.front().second);
      held_back.pop_front();
    }
  };
  const auto start_rest = [&] {
    for (const auto& [kind, moves] : held_back) device.start(kind, moves);
    held_back.clear();
  };
  const auto reduce = [&](Device::Kind kind, const CommTime& moves) {
    if (start == ReductionStart::kReady)
      device.start(kind, moves);
    else if (moves.total() > 0)
      held_back.emplace_back(kind, moves);
  };
  for (size_t i = 0; i < turns.size(); ++i) {
    const BackwardTurn& turn = turns[i];
    // Half of a layer's compute lies between its two exchanges.
    const CommTime half{turn.exchange.latency / 2, turn.exchange.transfer / 2};
    for (int part = 0; part < 2; ++part) {
      device.start(Device::kExchange, {0, half.transfer});
      device.wait_for(Device::kExchange);
      if (start == ReductionStart::kYielding && half.total() > 0)
        let_pass(strategy::num_let_pass(held_back.size()));
      device.pass(half.latency + turn.compute / 2);
    }
    plain += turn.exchange.total() + turn.compute;
    reduce(Device::kDense, turn.dense);
    reduce(Device::kExperts, turn.experts);
    const bool is_free = i + 1 < turns.size() && turns[i + 1].exchange.total() <= 0;
    if (start == ReductionStart::kYielding && is_free) start_rest();
  }
  LastBackward result{.slowed = std::max(0.0, device.now() - plain)};
  const double ended = device.now();
  device.start(Device::kMessage, {0, message.transfer});
  device.wait_for(Device::kMessage);
  result.message = std::max(0.0, device.now() - ended - message.transfer);
  device.wait_for_queue();
  start_rest();
  device.finish();
  result.exposed = std::max(0.0, device.last_end() - ended);
  return result;
}

}  // namespace piper::cost
