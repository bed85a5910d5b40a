// Pinned pages of the host, which stay where they are, so that a device copies to and from them on
// its own, beside what it computes. libtorch's pinned memory comes in powers of two, which is up to
// twice what was asked for; these are the pages that were asked for, and no more.
//
// Thread safety: from any thread.
#pragma once

#include <cstddef>

namespace piper::executor {

struct PageLock {
  // Whole pages, for every device of the process. False, and nothing has changed, where it cannot.
  bool (*lock)(void* pages, size_t bytes);
  // What lock() locked, before it is unmapped.
  void (*unlock)(void* pages);
};

// By the runtime that libtorch has loaded (cudaHostRegister, hipHostRegister). Where there is none,
// it never locks.
PageLock runtime_page_lock();

}  // namespace piper::executor
