#include <piper/collective/algorithms.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "stand_in_world.h"

namespace {

thread_local int64_t num_allocations = 0;  // of this thread: the streams' own do not count

}  // namespace

void* operator new(size_t size) {
  ++num_allocations;
  if (void* at = std::malloc(size)) return at;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(size);
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, size_t) noexcept { std::free(at); }

namespace piper::nccl {
namespace {

TEST_CASE("from the second execution on a rank allocates nothing, and brings the new bytes") {
  constexpr int64_t kRanks = 4, kBytes = 300, kRounds = 200;
  const StandIn stand_in(kStrict);
  comm::LocalWorld world(kRanks);
  std::atomic<int64_t> allocated{0}, wrong{0};
  run_ranks(stand_in, world, [&](comm::Transport& transport, Communicator& communicator) {
    const int64_t rank = transport.rank().value;
    const auto steps = collective::all_to_all(collective::AllToAll::kHaloPrinted, rank,
                                              collective::even_nodes(2, 2),
                                              [](int64_t, int64_t) { return kBytes; });
    std::vector<std::byte> input(kRanks * kBytes), output(kRanks * kBytes),
        scratch(steps.scratch_count);
    StreamedExchange exchange(communicator, "exchange", steps,
                              {input.data(), output.data(), scratch.data()}, {}, nullptr);
    for (int64_t round = 0; round < kRounds; ++round) {
      std::fill(input.begin(), input.end(), static_cast<std::byte>(rank * 16 + round));
      const int64_t before = num_allocations;
      exchange.start(static_cast<uint64_t>(round));
      wait(exchange, 20);
      // The stand-in keeps lists of messages for later; how many are in use at once varies.
      if (round >= kRounds / 2) allocated += num_allocations - before;
      for (int64_t i = 0; i < kRanks * kBytes; ++i)
        wrong += output[i] == static_cast<std::byte>(i / kBytes * 16 + round) ? 0 : 1;
    }
  });
  CHECK(wrong == 0);
  CHECK(allocated == 0);
}

}  // namespace
}  // namespace piper::nccl
