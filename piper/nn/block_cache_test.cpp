#include <doctest/doctest.h>
#include <piper/nn/block_cache.h>

#include <vector>

namespace piper::nn {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST_CASE("a large block comes back for a request of nearly its size") {
  BlockCache cache;
  void* block = cache.take(32 * kMiB);
  cache.give_back(block, 32 * kMiB);
  CHECK(cache.kept_bytes() == 32 * kMiB);
  void* other = cache.take(16 * kMiB);
  CHECK(other != block);
  CHECK(cache.take(30 * kMiB + 1) == block);
  CHECK(cache.kept_bytes() == 0);
  cache.give_back(block, 30 * kMiB + 1);
  cache.give_back(other, 16 * kMiB);
  CHECK(cache.kept_bytes() == 48 * kMiB);
}

TEST_CASE("capacity wastes at most an eighth and leaves small blocks alone") {
  for (size_t bytes = kMiB; bytes < 64 * kMiB; bytes = bytes * 9 / 8 + 1) {
    CHECK(BlockCache::capacity(bytes) >= bytes);
    CHECK(BlockCache::capacity(bytes) <= bytes + bytes / 8);
  }
  CHECK(BlockCache::capacity(1000) == 1000);
  BlockCache cache;
  cache.give_back(cache.take(1000), 1000);
  CHECK(cache.kept_bytes() == 0);
}

TEST_CASE("no more is kept than allowed, the oldest leaves first") {
  BlockCache cache;
  constexpr size_t kSize = 256 * kMiB;  // untouched memory costs nothing
  std::vector<void*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(cache.take(kSize));
  for (void* block : blocks) cache.give_back(block, kSize);
  CHECK(cache.kept_bytes() == BlockCache::kMostBytes);
  CHECK(cache.take(kSize) == blocks[4]);
  cache.give_back(blocks[4], kSize);
}

}  // namespace
}  // namespace piper::nn
