#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/collective/algorithms.h>
#include <piper/collective/all_to_all_bruck.h>
#include <piper/collective/all_to_all_flat.h>
#include <piper/collective/all_to_all_halo_printed.h>
#include <piper/collective/all_to_all_halo_switch.h>
#include <piper/collective/all_to_all_leader.h>
#include <piper/collective/all_to_all_naive.h>
#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/all_to_all_pairwise.h>
#include <piper/collective/all_to_all_three_level.h>
#include <piper/collective/all_to_all_two_d.h>
#include <piper/collective/all_to_all_windowed.h>

namespace piper::collective {
namespace {

// One pair has at most so many units: their sum over 100,000 members stays inside 64 bits.
constexpr int64_t kLargestCount = int64_t{1} << 46;

MemberSteps flat(int64_t member, const Topology& topology, const CountOf& count) {
  std::vector<int64_t> sent, received;
  for (int64_t other = 0; other < num_members(topology); ++other) {
    sent.push_back(count(member, other));
    received.push_back(count(other, member));
  }
  return all_to_all_flat(member, sent, received);
}

// told(from, to) of one member with every other one.
template <class Told>
CountsTold with_others(int64_t member, int64_t num_members, const Told& told) {
  CountsTold result;
  for (int64_t other = 0; other < num_members; ++other) {
    result.to_tell.push_back(told(member, other));
    result.to_hear.push_back(told(other, member));
  }
  return result;
}

}  // namespace

MemberSteps all_to_all(AllToAll algorithm, int64_t member, const Topology& topology,
                       const CountOf& asked, const AllToAllOptions& options) {
  const CountOf count = [&asked](int64_t from, int64_t to) {
    const int64_t units = asked(from, to);
    PIPER_CHECK(units >= 0 && units <= kLargestCount,
                fmt::format("{} units from member {} to member {}", units, from, to));
    return units;
  };
  switch (algorithm) {
    case AllToAll::kFlat:
      return flat(member, topology, count);
    case AllToAll::kNodeAware:
      return all_to_all_node_aware(member, topology, count);
    case AllToAll::kNaive:
      return all_to_all_naive(member, topology, count);
    case AllToAll::kPairwise:
      return all_to_all_pairwise(member, topology, count);
    case AllToAll::kWindowed:
      return all_to_all_windowed(member, topology, count, options.window);
    case AllToAll::kBruck:
      return all_to_all_bruck(member, topology, count);
    case AllToAll::kTwoD:
      return all_to_all_two_d(member, topology, count);
    case AllToAll::kLeader:
      return all_to_all_leader(member, topology, count);
    case AllToAll::kHaloPrinted:
      return all_to_all_halo_printed(member, topology, count, options.phase_one);
    case AllToAll::kHaloSwitch:
      return all_to_all_halo_switch(member, topology, count, options.chunk, options.phase_one);
    case AllToAll::kHalo:
      return all_to_all_halo_chunked(member, topology, count,
                                     {options.chunk, options.phase_one, 0});
    case AllToAll::kThreeLevel:
      return all_to_all_three_level(member, topology, count, options.phase_one);
    case AllToAll::kHaloDedup:
      PIPER_CHECK(false, "counts are not enough to write a deduplicated exchange (halo_dedup.h)");
  }
  PIPER_CHECK(false, "an exchange that is not in the list");
  return {};
}

bool forwards(AllToAll algorithm) { return traits(algorithm).forwards; }

CountsTold counts_told(AllToAll algorithm, int64_t member, const Topology& topology) {
  const int64_t n = num_members(topology);
  switch (algorithm) {
    case AllToAll::kFlat:
    case AllToAll::kNodeAware:
    case AllToAll::kNaive:
    case AllToAll::kPairwise:
    case AllToAll::kWindowed:
      return with_others(member, n, [](int64_t, int64_t to) {
        return std::vector<int32_t>{static_cast<int32_t>(to)};
      });
    case AllToAll::kBruck:
      return with_others(member, n,
                         [=](int64_t from, int64_t to) { return bruck_counts_told(from, to, n); });
    case AllToAll::kThreeLevel: {
      const NodesInGroups where(topology);
      return with_others(member, n, [&](int64_t from, int64_t to) {
        return three_level_counts_told(from, to, where);
      });
    }
    case AllToAll::kHaloDedup:
      PIPER_CHECK(false,
                  "routes, not counts, are told of a deduplicated exchange (known_routes.h)");
    case AllToAll::kTwoD:
    case AllToAll::kLeader:
    case AllToAll::kHaloPrinted:
    case AllToAll::kHaloSwitch:
    case AllToAll::kHalo:
      break;
  }
  const Units units(topology, algorithm == AllToAll::kHaloSwitch ? halo_switch_level(topology) : 0);
  const auto told = algorithm == AllToAll::kTwoD     ? two_d_counts_told
                    : algorithm == AllToAll::kLeader ? leader_counts_told
                                                     : halo_counts_told;
  return with_others(member, n, [&](int64_t from, int64_t to) { return told(from, to, units); });
}

}  // namespace piper::collective
