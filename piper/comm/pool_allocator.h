// Memory for what comes and goes with every message: taken from a pool that keeps what it was given
// back, so that a run that repeats itself asks the system for nothing. Internal to the worlds.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <mutex>

namespace piper::comm::internal {

using Pool = std::shared_ptr<std::pmr::memory_resource>;

// One rank owns the pool: its thread makes nearly all allocations, others give back. A lock that
// hardly anybody asks for costs less than what the standard's synchronized pool does to know its
// threads.
class RankPool final : public std::pmr::memory_resource {
  void* do_allocate(size_t bytes, size_t alignment) override {
    const std::lock_guard lock(mutex_);
    return pool_.allocate(bytes, alignment);
  }
  void do_deallocate(void* at, size_t bytes, size_t alignment) override {
    const std::lock_guard lock(mutex_);
    pool_.deallocate(at, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  std::mutex mutex_;
  std::pmr::unsynchronized_pool_resource pool_;
};

// The pool lives as long as anything that came from it. Thread-safe.
template <class T>
struct PoolAllocator {
  using value_type = T;

  explicit PoolAllocator(Pool from) : pool(std::move(from)) {}
  template <class U>
  PoolAllocator(const PoolAllocator<U>& other) : pool(other.pool) {}  // NOLINT: as allocators must

  T* allocate(size_t count) {
    return static_cast<T*>(pool->allocate(count * sizeof(T), alignof(T)));
  }
  void deallocate(T* at, size_t count) { pool->deallocate(at, count * sizeof(T), alignof(T)); }
  template <class U>
  bool operator==(const PoolAllocator<U>& other) const {
    return pool == other.pool;
  }

  Pool pool;
};

}  // namespace piper::comm::internal
