#include <piper/plan/exchange_choice.h>
#include <piper/sim/flow_limit.h>

#include <algorithm>
#include <array>

namespace piper::plan {
namespace {

using strategy::AllToAll;

// Pieces of a message at most: the last one is then a hundredth of it, and finer ones cost time to
// simulate alone.
constexpr int64_t kLeastChunk = 2048, kChunkFactor = 2, kMostPieces = 64;

// The largest message that a counterpart gets: no piece is larger.
int64_t largest_message(const collective::Topology& topology, const collective::CountOf& bytes_of,
                        AllToAll algorithm) {
  const int64_t n = collective::num_members(topology);
  int64_t largest = 0;
  for (int64_t member = 0; member < n; ++member)
    for (const collective::Step& step :
         collective::all_to_all(algorithm, member, topology, bytes_of).steps)
      if (step.kind == collective::StepKind::kSend) largest = std::max(largest, step.source.count);
  return largest;
}

// Bytes that the simulator counts as one, so that messages of many rows stay within what it can
// count.
int64_t unit_bytes(const collective::Topology& topology, const collective::CountOf& bytes_of) {
  constexpr int64_t kMostRows = 16;  // in one message, times the members
  const int64_t n = collective::num_members(topology);
  int64_t largest = 0, unit = 1;
  for (int64_t from = 0; from < n; ++from)
    for (int64_t to = 0; to < n; ++to) largest = std::max(largest, bytes_of(from, to));
  while (largest / unit > sim::kMaxFlowUnits / (kMostRows * n)) unit *= 2;
  return unit;
}

}  // namespace

double exchange_seconds(const sim::Fabric& fabric, const collective::Topology& topology,
                        const collective::CountOf& bytes_of, AllToAll algorithm,
                        int64_t chunk_bytes) {
  const int64_t unit = unit_bytes(topology, bytes_of);
  const collective::CountOf units_of = [&](int64_t from, int64_t to) {
    return (bytes_of(from, to) + unit - 1) / unit;
  };
  collective::AllToAllOptions options;
  if (chunk_bytes > 0) options.chunk = std::max<int64_t>(1, chunk_bytes / unit);
  return sim::price(
      collective::num_members(topology),
      [&](int64_t member) {
        return collective::all_to_all(algorithm, member, topology, units_of, options);
      },
      fabric, static_cast<double>(unit));
}

ExchangeChoice choose_exchange(const sim::Fabric& fabric, const collective::Topology& topology,
                               const collective::CountOf& bytes_of,
                               std::span<const AllToAll> among) {
  ExchangeChoice choice{.priced = {},
                        .straight_limit_seconds = sim::exchange_limit(fabric, bytes_of).seconds};
  const auto add = [&](AllToAll algorithm, int64_t chunk) {
    choice.priced.push_back(
        {algorithm, chunk, exchange_seconds(fabric, topology, bytes_of, algorithm, chunk)});
  };
  for (const AllToAll algorithm : among) {
    add(algorithm, 0);
    if (!traits(algorithm).is_cut) continue;
    const int64_t largest = largest_message(topology, bytes_of, algorithm);
    int64_t chunk = kLeastChunk;
    while (chunk < largest / kMostPieces) chunk *= kChunkFactor;
    for (; chunk < largest; chunk *= kChunkFactor) add(algorithm, chunk);
  }
  std::ranges::stable_sort(choice.priced, {}, &PricedExchange::seconds);
  return choice;
}

}  // namespace piper::plan
