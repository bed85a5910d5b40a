#include <piper/plan/exchange_choice.h>
#include <piper/sim/flow_limit.h>

#include <algorithm>
#include <array>

namespace piper::plan {
namespace {

using strategy::AllToAll;

constexpr int64_t kLeastChunk = 2048, kChunkFactor = 2;

bool is_cut(AllToAll algorithm) {
  return algorithm == AllToAll::kHalo || algorithm == AllToAll::kHaloSwitch;
}

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

}  // namespace

double exchange_seconds(const sim::Fabric& fabric, const collective::Topology& topology,
                        const collective::CountOf& bytes_of, AllToAll algorithm,
                        int64_t chunk_bytes) {
  collective::AllToAllOptions options;
  if (chunk_bytes > 0) options.chunk = chunk_bytes;
  return sim::price(
      collective::num_members(topology),
      [&](int64_t member) {
        return collective::all_to_all(algorithm, member, topology, bytes_of, options);
      },
      fabric);
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
    if (!is_cut(algorithm)) continue;
    const int64_t largest = largest_message(topology, bytes_of, algorithm);
    for (int64_t chunk = kLeastChunk; chunk < largest; chunk *= kChunkFactor) add(algorithm, chunk);
  }
  std::ranges::stable_sort(choice.priced, {}, &PricedExchange::seconds);
  return choice;
}

}  // namespace piper::plan
