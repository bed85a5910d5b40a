#include <doctest/doctest.h>
#include <piper/collective/all_to_all_halo_printed.h>
#include <piper/comm/local.h>
#include <piper/comm/operations.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

namespace {

// Of the whole test program.
std::atomic<int64_t> num_allocations{0};

}  // namespace

void* operator new(size_t size) {
  ++num_allocations;
  if (void* at = std::malloc(size)) return at;
  throw std::bad_alloc();
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, size_t) noexcept { std::free(at); }

namespace piper::comm {
namespace {

constexpr int64_t kRanks = 4, kBytes = 300;

// HALO as printed over two nodes: messages, copies, scratch and waiting in one.
std::unique_ptr<RepeatedOperation> make(Transport& transport, std::span<const std::byte> input,
                                        std::span<std::byte> output) {
  Group group{{}, transport.rank().value};
  for (int64_t r = 0; r < kRanks; ++r) group.members.emplace_back(r);
  return make_exchange(
      transport, group, "exchange",
      collective::all_to_all_halo_printed(group.index, collective::even_nodes(2, 2),
                                          [](int64_t, int64_t) { return kBytes; }),
      input, output);
}

// The byte of `round` from one rank to another.
std::byte value(int64_t from, int64_t to, int64_t round) {
  return static_cast<std::byte>(from * 16 + to * 64 + round);
}

void fill(std::vector<std::byte>& input, int64_t from, int64_t round) {
  for (int64_t i = 0; i < kRanks * kBytes; ++i) input[i] = value(from, i / kBytes, round);
}

int64_t num_wrong(const std::vector<std::byte>& output, int64_t to, int64_t round) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < kRanks * kBytes; ++i)
    wrong += output[i] == value(i / kBytes, to, round) ? 0 : 1;
  return wrong;
}

TEST_CASE("an exchange that is played again brings the new bytes and allocates nothing") {
  LocalWorld world(kRanks);
  std::atomic<int64_t> wrong{0}, allocated{-1};
  run_ranks(world, [&](Transport& transport) {
    const int64_t rank = transport.rank().value;
    std::vector<std::byte> input(kRanks * kBytes), output(kRanks * kBytes);
    const auto operation = make(transport, input, output);
    // An order of posting that was not there before may need one more message's memory at once.
    constexpr int64_t kWarm = 200, kRounds = 400;
    int64_t before = 0;
    for (int64_t round = 0; round < kRounds; ++round) {
      if (round == kWarm) before = num_allocations;
      // Whoever is done with the last round leaves, which may take memory.
      if (round == kRounds - 2 && rank == 0) allocated = num_allocations - before;
      fill(input, rank, round);
      operation->start(round);
      wait(transport, *operation, 60);
      wrong += num_wrong(output, rank, round);
    }
  });
  CHECK(wrong == 0);
  CHECK(allocated == 0);
}

TEST_CASE("an exchange is not started again before it is done") {
  LocalWorld world(1);
  const auto endpoint = world.endpoint(Rank(0));
  std::vector<std::byte> buffer(1);
  const auto operation = make_exchange(*endpoint, {{Rank(0)}, 0}, "alone", {}, {}, {});
  operation->start(1);
  operation->start(2);  // nothing to do: done at once
  CHECK(operation->advance());
}

}  // namespace
}  // namespace piper::comm
