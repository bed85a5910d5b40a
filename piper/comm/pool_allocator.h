// Memory for what comes and goes with every message: taken from a pool that keeps what it was given
// back, so that a run that repeats itself asks the system for nothing. Internal to the worlds.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>

namespace piper::comm::internal {

using Pool = std::shared_ptr<std::pmr::memory_resource>;

inline Pool make_pool() { return std::make_shared<std::pmr::synchronized_pool_resource>(); }

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
