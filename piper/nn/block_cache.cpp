#include <c10/core/impl/alloc_cpu.h>
#include <piper/nn/block_cache.h>

#include <algorithm>
#include <bit>
#include <vector>

namespace piper::nn {

size_t BlockCache::capacity(size_t bytes) {
  if (bytes < kSmallest) return bytes;
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

BlockCache::~BlockCache() {
  for (const Block& block : kept_) c10::free_cpu(block.memory);
}

void* BlockCache::take(size_t bytes) {
  const size_t wanted = capacity(bytes);
  if (wanted >= kSmallest) {
    const std::lock_guard lock(mutex_);
    // The youngest first: its pages are the likeliest to be in a cache.
    const auto found = std::find_if(kept_.rbegin(), kept_.rend(),
                                    [&](const Block& block) { return block.capacity == wanted; });
    if (found != kept_.rend()) {
      void* memory = found->memory;
      kept_bytes_ -= wanted;
      kept_.erase(std::next(found).base());
      return memory;
    }
  }
  return c10::alloc_cpu(wanted);
}

void BlockCache::give_back(void* block, size_t bytes) {
  const size_t size = capacity(bytes);
  if (size < kSmallest || size > kMostBytes) return c10::free_cpu(block);
  std::vector<void*> leaving;
  {
    const std::lock_guard lock(mutex_);
    kept_.push_back({block, size});
    kept_bytes_ += size;
    while (kept_bytes_ > kMostBytes) {
      leaving.push_back(kept_.front().memory);
      kept_bytes_ -= kept_.front().capacity;
      kept_.pop_front();
    }
  }
  for (void* memory : leaving) c10::free_cpu(memory);
}

size_t BlockCache::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

}  // namespace piper::nn
