#include <doctest/doctest.h>
#include <piper/collective/algorithms.h>
#include <piper/collective/halo_dedup_combine.h>
#include <piper/collective/halo_dedup_dispatch.h>
#include <piper/comm/local.h>
#include <piper/comm/step_executor.h>

#include <atomic>
#include <random>

namespace piper::comm {
namespace {

using collective::MemberSteps;

// Executes steps of eight-byte units among all ranks of a world.
template <class T>
std::vector<T> execute(Transport& transport, uint64_t key, MemberSteps steps,
                       std::span<const T> input, Element element) {
  Group group{{}, transport.rank().value};
  for (int64_t r = 0; r < transport.world_size(); ++r) group.members.emplace_back(r);
  std::vector<T> output(steps.output_count, T{-1});
  ExecutionBuffers buffers{.input = std::as_bytes(input),
                           .output = std::as_writable_bytes(std::span(output))};
  buffers.scratch.reset(new std::byte[steps.scratch_count * sizeof(T) + 1],
                        std::default_delete<std::byte[]>());
  StepExecutor executor(transport, group, {key, "steps"}, std::move(steps), buffers,
                        {sizeof(T), element});
  wait(transport, executor, 60);
  return output;
}

// Three nodes: {0 1} {2 3 4} {5}.
collective::Topology three_nodes() { return {.unit{{0, 0, 1, 1, 1, 2}}, .nic{}}; }

TEST_CASE("every exchange of the list brings real numbers to where they belong") {
  const collective::Topology topology = three_nodes();
  const auto count = [](int64_t from, int64_t to) { return (from * 7 + to * 3) % 5 * 40; };
  for (const collective::AllToAll algorithm : strategy::kAllToAlls) {
    LocalWorld world(6);
    std::atomic<int> num_right{0};
    run_ranks(world, [&](Transport& transport) {
      const int64_t me = transport.rank().value;
      std::vector<int64_t> input, expected;
      for (int64_t other = 0; other < 6; ++other) {
        for (int64_t i = 0; i < count(me, other); ++i)
          input.push_back(me * 100000 + other * 1000 + i);
        for (int64_t i = 0; i < count(other, me); ++i)
          expected.push_back(other * 100000 + me * 1000 + i);
      }
      const MemberSteps steps =
          collective::all_to_all(algorithm, me, topology, count, {.chunk = 70});
      num_right +=
          execute<int64_t>(transport, 1, steps, input, Element::kInt64) == expected ? 1 : 0;
    });
    CAPTURE(strategy::name(algorithm));
    CHECK(num_right == 6);
  }
}

TEST_CASE("deduplicated dispatch and combine on real numbers are the plain weighted sum") {
  constexpr int64_t kTokens = 20, kRow = 4;
  const collective::Topology topology = three_nodes();
  const collective::Units units(topology, 0);
  const collective::Dedup dedup{.row_count = kRow, .num_pieces = 3};
  std::vector<collective::TokenRoutes> routes(6);
  std::mt19937 random(4);
  for (auto& own : routes)
    for (int64_t token = 0; token < kTokens; ++token) {
      std::vector<int32_t> targets;
      for (int32_t target = 0; target < 6; ++target)
        if (random() % 2 == 0) targets.push_back(target);
      own.add(targets);
    }
  LocalWorld world(6);
  std::atomic<int64_t> num_wrong{0};
  run_ranks(world, [&](Transport& transport) {
    const int64_t me = transport.rank().value;
    const collective::DedupKnown known{
        .own = routes[me],
        .into_unit = [&](int64_t from) { return routes_told(routes[from], from, me, units); },
        .rows =
            [&](int64_t from) {
              return counts_told(routes[from], from, me, units, dedup.num_pieces);
            }};
    std::vector<double> tokens;
    for (int64_t i = 0; i < kTokens * kRow; ++i)
      tokens.push_back(static_cast<double>(me * 1000 + i));
    std::vector<double> rows = execute<double>(
        transport, 1, halo_dedup_dispatch(me, topology, known, dedup), tokens, Element::kFloat64);
    for (double& row : rows) row *= static_cast<double>(me + 1);  // what this rank's experts do
    const std::vector<double> sums = execute<double>(
        transport, 2, halo_dedup_combine(me, topology, known, dedup), rows, Element::kFloat64);
    for (int64_t token = 0; token < kTokens; ++token) {
      double factor = 0;
      for (const int32_t target : routes[me].of(token)) factor += target + 1;
      for (int64_t i = token * kRow; factor > 0 && i < (token + 1) * kRow; ++i)
        num_wrong += sums[i] == factor * tokens[i] ? 0 : 1;
    }
  });
  CHECK(num_wrong == 0);
}

}  // namespace
}  // namespace piper::comm
