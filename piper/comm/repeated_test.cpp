#include <doctest/doctest.h>
#include <piper/collective/all_to_all_halo_printed.h>
#include <piper/comm/local.h>
#include <piper/comm/operations.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

namespace {

// Counts the allocations of the whole test program.
std::atomic<int64_t> num_allocations{0};

}  // namespace

// Not inlined: GCC would warn of a free() without its malloc().
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* at = std::malloc(size)) return at;
  throw std::bad_alloc();
}
// What std::stable_sort asks for.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(size > 0 ? size : 1);
}
[[gnu::noinline]] void operator delete(void* at) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, size_t) noexcept { std::free(at); }

namespace piper::comm {
namespace {

constexpr int64_t kRanks = 4;

// HALO as printed over two nodes: messages, copies, scratch and waiting in one.
std::unique_ptr<RepeatedOperation> make(Transport& transport, int64_t bytes,
                                        std::span<const std::byte> input,
                                        std::span<std::byte> output) {
  Group group{{}, transport.rank().value};
  for (int64_t r = 0; r < kRanks; ++r) group.members.emplace_back(r);
  return make_exchange(
      transport, group, "exchange",
      collective::all_to_all_halo_printed(group.index, collective::even_nodes(2, 2),
                                          [=](int64_t, int64_t) { return bytes; }),
      input, output);
}

// The byte of `round` from one rank to another.
std::byte value(int64_t from, int64_t to, int64_t round) {
  return static_cast<std::byte>(from * 16 + to * 64 + round);
}

void fill(std::vector<std::byte>& input, int64_t from, int64_t round) {
  const int64_t bytes = std::ssize(input) / kRanks;
  for (int64_t i = 0; i < std::ssize(input); ++i) input[i] = value(from, i / bytes, round);
}

int64_t num_wrong(const std::vector<std::byte>& output, int64_t to, int64_t round) {
  const int64_t bytes = std::ssize(output) / kRanks;
  int64_t wrong = 0;
  for (int64_t i = 0; i < std::ssize(output); ++i)
    wrong += output[i] == value(i / bytes, to, round) ? 0 : 1;
  return wrong;
}

TEST_CASE("an exchange that is executed again brings the new bytes and allocates nothing") {
  int64_t bytes = 300, num_warm = 200;
  SUBCASE("short messages") {}
  SUBCASE("messages that either side may copy") { bytes = 250'000, num_warm = 20; }
  LocalWorld world(kRanks);
  std::atomic<int64_t> wrong{0}, allocated{-1};
  run_ranks(world, [&](Transport& transport) {
    const int64_t rank = transport.rank().value;
    std::vector<std::byte> input(kRanks * bytes), output(kRanks * bytes);
    const auto operation = make(transport, bytes, input, output);
    // An order of posting that was not there before may need one more message's memory at once.
    const int64_t num_rounds = 2 * num_warm;
    int64_t before = 0;
    for (int64_t round = 0; round < num_rounds; ++round) {
      if (round == num_warm) before = num_allocations;
      // Whoever is done with the last round leaves, which may take memory.
      if (round == num_rounds - 2 && rank == 0) allocated = num_allocations - before;
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
