#include <doctest/doctest.h>
#include <piper/nn/aten.h>
#include <piper/nn/counting_allocator.h>

#include <thread>

namespace piper::nn {
namespace {

TEST_CASE("bytes are counted exactly and given back to the rank that took them") {
  install_counting_allocator();
  install_counting_allocator();
  const Rank a(101), b(102);
  at::Tensor kept;
  {
    const AllocatingRank as_a(a);
    kept = at::empty({3}, at::kFloat);
    {
      const AllocatingRank as_b(b);
      const at::Tensor other = at::empty({5}, at::kDouble);
      CHECK(live_bytes(b) == 40);
    }
    const at::Tensor mine = at::empty({100}, at::kByte);
    CHECK(live_bytes(a) == 112);
    CHECK(live_bytes(b) == 0);
    CHECK(peak_bytes(b) == 40);
    const AllocatingRank nobody;
    const at::Tensor uncounted = at::empty({1000}, at::kByte);
    CHECK(live_bytes(a) == 112);
  }
  CHECK(live_bytes(a) == 12);
  CHECK(peak_bytes(a) == 112);
  reset_peak(a);
  CHECK(peak_bytes(a) == 12);
  std::thread([&kept] {
    const AllocatingRank as_b(Rank(102));
    kept.reset();
  }).join();
  CHECK(live_bytes(a) == 0);
  CHECK(live_bytes(b) == 0);
}

TEST_CASE("storage keeps libtorch's alignment, and an empty tensor takes nothing") {
  install_counting_allocator();
  const Rank rank(103);
  const AllocatingRank as(rank);
  for (const int64_t bytes : {1, 63, 64, 65, 4097, 3 << 20}) {
    const at::Tensor t = at::empty({bytes}, at::kByte);
    CHECK(reinterpret_cast<uintptr_t>(t.data_ptr()) % 64 == 0);
    CHECK(live_bytes(rank) == bytes);
  }
  const at::Tensor nothing = at::empty({0}, at::kFloat);
  CHECK(live_bytes(rank) == 0);
}

TEST_CASE(
    "a rank at its limit is refused with figures, others are not, and what it gives back is free "
    "again") {
  install_counting_allocator();
  const Rank small(103), large(104);
  set_limit(small, 1000);
  const AllocatingRank as_small(small);
  {
    const at::Tensor most = at::empty({900}, at::kByte);
    try {
      at::empty({101}, at::kByte);
      FAIL("101 more fit into 1000");
    } catch (const OutOfMemory& error) {
      CHECK(error.rank == small);
      CHECK(error.wanted_bytes == 101);
      CHECK(error.live_bytes == 900);
      CHECK(error.limit_bytes == 1000);
    }
    const AllocatingRank as_large(large);
    CHECK(at::empty({4096}, at::kByte).defined());
  }
  CHECK(at::empty({1000}, at::kByte).defined());
  CHECK_THROWS_AS(at::empty({int64_t{1} << 60}, at::kByte), OutOfMemory);
  set_limit(small, 0);
  CHECK(at::empty({4096}, at::kByte).defined());
  // More than any machine has: the refusal is the machine's.
  try {
    at::empty({int64_t{1} << 60}, at::kByte);
    FAIL("2^60 bytes were given");
  } catch (const OutOfMemory& error) {
    CHECK(error.limit_bytes == 0);
  }
}

}  // namespace
}  // namespace piper::nn
