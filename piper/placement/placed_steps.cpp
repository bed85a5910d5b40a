#include <piper/base/error.h>
#include <piper/cost/exchange_time.h>
#include <piper/placement/placed_exchange.h>
#include <piper/placement/placed_steps.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace piper::placement {
namespace {

constexpr auto kExperts = static_cast<size_t>(Axis::kExpert);
constexpr int64_t kMostSimulatedOfStep = 50'000;  // messages: some 0.1 s, for each order
constexpr double kSameStep = 1e-9;
// The least weight of bytes, by axis: seconds that a step waits for a second of busy links. Bytes
// that nobody waits for keep it, since of two placements with equal waiting the one with less busy
// links is better, and overlapped traffic can become exposed when a placement spreads its group.
constexpr double kHiddenWeight = 0.02;

// What each port of one axis' bytes carries.
class PortLoads {
 public:
  PortLoads(const cluster::Cluster& machine, const Slots& slots, size_t num_ranks)
      : machine_(machine), slots_(slots), of_rank_(num_ranks), of_unit_(slots.num_boundaries()) {
    for (size_t b = 1; b < of_unit_.size(); ++b)
      of_unit_[b].resize(static_cast<size_t>(std::ranges::max(slots.unit[b])) + 1);
  }

  void add(const RankGroup& group, const RankSlots& placement) {
    const auto n = static_cast<double>(group.ranks.size());
    inside_ = std::max(inside_, group.is_ring ? group.bytes : (n - 1) * group.bytes);
    for (size_t b = 0; b < slots_.num_boundaries(); ++b) {
      std::map<int32_t, double> members;  // by unit
      const auto unit = [&](int32_t rank) {
        return slots_.unit[b][static_cast<size_t>(placement[static_cast<size_t>(rank)])];
      };
      for (const int32_t rank : group.ranks) ++members[unit(rank)];
      if (members.size() == 1) return;  // and so in all further out
      if (b == 0) {
        for (const int32_t rank : group.ranks) {
          const double here = members[unit(rank)];
          of_rank_[static_cast<size_t>(rank)] +=
              group.is_ring ? group.bytes / here : (n - here) * group.bytes;
        }
        continue;
      }
      for (const auto& [u, here] : members)
        of_unit_[b][static_cast<size_t>(u)] +=
            group.is_ring ? group.bytes : here * (n - here) * group.bytes;
    }
  }

  double seconds() const {
    double longest = inside_ / cost::device_bandwidth(machine_, 0);
    if (slots_.num_boundaries() == 0) return longest;
    longest = std::max(longest, std::ranges::max(of_rank_) / cost::device_bandwidth(machine_, 1));
    for (size_t b = 1; b < of_unit_.size(); ++b)
      longest = std::max(longest, std::ranges::max(of_unit_[b]) /
                                      (cost::device_bandwidth(machine_, b + 1) *
                                       static_cast<double>(machine_.devices_of_level(b))));
    return longest;
  }

 private:
  const cluster::Cluster& machine_;
  const Slots& slots_;
  double inside_ = 0;
  std::vector<double> of_rank_;
  std::vector<std::vector<double>> of_unit_;  // [boundary][unit]; of nodes: unused
};

// The places that the search assumes: neighbours on neighbouring devices.
Slots regular(const cluster::Cluster& machine, int32_t num_ranks) {
  Slots slots;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    slots.node.push_back(static_cast<int32_t>(rank / machine.devices_per_node()));
    slots.device.push_back(rank);
  }
  for (size_t level = 0; level + 1 < machine.levels.size(); ++level) {
    std::vector<int32_t>& units = slots.unit.emplace_back();
    for (int32_t rank = 0; rank < num_ranks; ++rank)
      units.push_back(static_cast<int32_t>(rank / machine.devices_of_level(level)));
  }
  return slots;
}

RankSlots in_order(int32_t num_ranks) {
  RankSlots slots(static_cast<size_t>(num_ranks));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

// Axes whose waiting a step counts together.
struct Waited {
  double seconds = 0;  // exposed
  std::vector<Axis> axes;
  double busy(const BusySeconds& all) const {
    double sum = 0;
    for (const Axis axis : axes) sum += all[static_cast<size_t>(axis)];
    return sum;
  }
};

std::vector<Waited> waited(const ExposedSeconds& exposed) {
  return {{exposed.exchange, {Axis::kExpert}},
          {exposed.tensor, {Axis::kTensor, Axis::kExpertTensor}},
          {exposed.context, {Axis::kContext}},
          {exposed.messages, {Axis::kPipeline}},
          {exposed.reductions, {Axis::kData, Axis::kExpertData, Axis::kEmbeddingTable}}};
}

double stretched(const ExposedSeconds& exposed, const BusySeconds& assumed,
                 const BusySeconds& placed) {
  double more = 0;
  for (const Waited& w : waited(exposed))
    if (const double before = w.busy(assumed); before > 0)
      more += w.seconds * (w.busy(placed) / before - 1);
  return more;
}

// Every axis' bytes by what a step waits for them.
std::vector<RankGroup> weighed(std::vector<RankGroup> groups, const ExposedSeconds& exposed,
                               const BusySeconds& assumed) {
  BusySeconds weight;
  weight.fill(kHiddenWeight);
  for (const Waited& w : waited(exposed))
    if (const double busy = w.busy(assumed); busy > 0)
      for (const Axis axis : w.axes)
        weight[static_cast<size_t>(axis)] = std::max(kHiddenWeight, w.seconds / busy);
  for (RankGroup& group : groups) group.bytes *= weight[static_cast<size_t>(group.axis)];
  return groups;
}

}  // namespace

std::vector<RankGroup> by_waiting_of(const cluster::Cluster& machine,
                                     std::span<const RankGroup> groups,
                                     const ExposedSeconds& exposed, int32_t num_ranks) {
  const BusySeconds assumed =
      busy_seconds(machine, regular(machine, num_ranks), groups, in_order(num_ranks));
  return weighed({groups.begin(), groups.end()}, exposed, assumed);
}

ExposedSeconds exposed_of(const cost::StepSeconds& time) {
  return {.exchange = time.exchange,
          .tensor = time.tensor,
          .context = time.context,
          .messages = time.messages,
          .reductions = time.reductions};
}

BusySeconds busy_seconds(const cluster::Cluster& machine, const Slots& slots,
                         std::span<const RankGroup> groups, const RankSlots& placement) {
  BusySeconds busy{};
  for (size_t axis = 0; axis < kNumAxes; ++axis) {
    PortLoads loads(machine, slots, placement.size());
    for (const RankGroup& group : groups)
      if (static_cast<size_t>(group.axis) == axis) loads.add(group, placement);
    busy[axis] = loads.seconds();
  }
  return busy;
}

PlacedStep place_step(const cluster::Allocation& allocation, const Slots& slots,
                      const model::Model& model, const strategy::Strategy& strategy,
                      const ExposedSeconds& exposed, double predicted_seconds,
                      const PlaceOptions& options) {
  const auto num_ranks = static_cast<int32_t>(strategy.mesh.world());
  PIPER_CHECK(num_ranks <= slots.size(), "more ranks than slots");
  const std::vector<RankGroup> groups = rank_traffic(model, strategy);
  const cluster::Cluster& machine = allocation.machine;
  const RankSlots order = in_order(num_ranks);
  const Slots as_assumed = regular(machine, num_ranks);
  const BusySeconds assumed = busy_seconds(machine, as_assumed, groups, order);
  const double pair_bytes = exchange_pair_bytes(model, strategy);
  const auto simulated = [&](const Slots& on, const RankSlots& ranks) {
    return placed_exchange_seconds(allocation, on, groups, ranks, pair_bytes, strategy,
                                   kMostSimulatedOfStep);
  };
  const std::optional<double> assumed_exchange =
      exposed.exchange > 0 ? simulated(as_assumed, order) : std::nullopt;
  const auto step = [&](const RankSlots& ranks) {
    BusySeconds busy = busy_seconds(machine, slots, groups, ranks);
    if (assumed_exchange)
      busy[kExperts] = assumed[kExperts] * *simulated(slots, ranks) / *assumed_exchange;
    return predicted_seconds + stretched(exposed, assumed, busy);
  };
  PlacedStep placed{.placing = place_ranks(slots, groups, num_ranks, options)};
  placed.seconds = placed.by_bytes_seconds = step(placed.placing.ranks);
  const auto keep = [&](const RankSlots& ranks, double seconds) {
    if (seconds >= placed.seconds * (1 - kSameStep)) return;
    placed.seconds = seconds;
    placed.placing.ranks = ranks;
    placed.placing.seconds = price_placement(slots, groups, ranks).seconds;
    placed.placing.is_best = false;  // another keeps links less busy
  };
  const std::vector<RankGroup> by_waiting = weighed(groups, exposed, assumed);
  for (const PlaceOptions& o : {options, PlaceOptions{.max_swaps = 0, .max_branches = 0}}) {
    const RankSlots ranks = place_ranks(slots, by_waiting, num_ranks, o).ranks;
    keep(ranks, step(ranks));
  }
  placed.given_seconds = step(order);
  keep(order, placed.given_seconds);
  return placed;
}

}  // namespace piper::placement
