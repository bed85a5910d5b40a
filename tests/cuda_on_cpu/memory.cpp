#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <tests/cuda_on_cpu/memory.h>
#include <tests/cuda_on_cpu/threads.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// Variables of the program, by the linker: what is static in a kernel is shared memory.
extern "C" char __data_start[], _end[];

namespace piper::testing::cuda_on_cpu {
namespace {

// Who was last at some bytes.
struct Seen {
  Moment write, read, other_read;  // the reads are of different threads
};
bool is_of_thread(const Moment& a, const Moment& b) {
  return a.launch == b.launch && a.block == b.block && a.thread == b.thread;
}
bool is_of_warp(const Moment& a, const Moment& b) {
  return a.block == b.block && a.thread / kWarp == b.thread / kWarp;
}
bool race(const Moment& before, const Moment& now) {
  if (before.launch != now.launch) return false;
  if (before.block != now.block) return true;
  if (before.thread == now.thread || before.block_barriers != now.block_barriers) return false;
  return !is_of_warp(before, now) || before.warp_barriers == now.warp_barriers;
}

// A tensor's memory.
struct Region {
  uintptr_t begin = 0, end = 0;
  // By grains of so many bytes, as many as the narrowest access had; empty until a kernel comes.
  uintptr_t grain = 16;
  std::vector<Seen> seen;

  void refine(uintptr_t finer) {
    std::vector<Seen> all;
    all.reserve((end - begin + finer - 1) / finer);
    for (uintptr_t at = 0; at < end - begin; at += finer)
      all.push_back(seen.empty() ? Seen{} : seen[at / grain]);
    seen = std::move(all);
    grain = finer;
  }
};

class Memory {
 public:
  void add(void* begin, size_t bytes) {
    const auto at = reinterpret_cast<uintptr_t>(begin);
    regions_[at] = {.begin = at, .end = at + bytes};
  }
  void remove(void* begin) {
    regions_.erase(reinterpret_cast<uintptr_t>(begin));
    for (Region*& region : recent_) region = nullptr;
  }
  void begin_block() { shared_.clear(); }
  size_t num_accesses() const { return num_accesses_; }

  void look(uintptr_t address, size_t bytes, bool writes) {
    const Moment* moment = now();
    if (moment == nullptr || is_on_own_stack(address)) return;
    ++num_accesses_;
    if (Region* region = find(address); region != nullptr) {
      if (address + bytes > region->end) outside(address, bytes, writes);
      const uintptr_t first = address - region->begin;
      if (const uintptr_t grain = std::min(widest_grain(first, bytes), region->grain);
          grain < region->grain || region->seen.empty())
        region->refine(grain);
      for (uintptr_t at = first; at < first + bytes; at += region->grain)
        look(region->seen[at / region->grain], *moment, writes, "a tensor's", at);
      return;
    }
    const auto lowest = reinterpret_cast<uintptr_t>(__data_start);
    if (address < lowest || address + bytes > reinterpret_cast<uintptr_t>(_end))
      outside(address, bytes, writes);
    for (uintptr_t byte = address; byte < address + bytes; ++byte) {
      const auto [seen, is_new] = shared_.try_emplace(byte);
      if (is_new && !writes) fault("reads shared memory that nobody has written");
      look(seen->second, *moment, writes, "shared memory's", byte - lowest);
    }
  }

 private:
  Region* find(uintptr_t address) {
    for (Region* region : recent_)
      if (region != nullptr && address >= region->begin && address < region->end) return region;
    auto after = regions_.upper_bound(address);
    if (after == regions_.begin()) return nullptr;
    Region& region = std::prev(after)->second;
    if (address >= region.end) return nullptr;
    recent_[oldest_++ % kRecent] = &region;
    return &region;
  }
  // Returns the widest grain, 16 bytes at most, of which both are multiples.
  static uintptr_t widest_grain(uintptr_t first, size_t bytes) {
    uintptr_t grain = 16;
    while (first % grain != 0 || bytes % grain != 0) grain /= 2;
    return grain;
  }
  static void outside(uintptr_t address, size_t bytes, bool writes) {
    fault(fmt::format("{} {} bytes at {:#x}, which is outside of every tensor",
                      writes ? "writes" : "reads", bytes, address));
  }
  static void look(Seen& seen, const Moment& moment, bool writes, const char* whose,
                   uintptr_t byte) {
    const auto check = [&](const Moment& before, const char* did) {
      if (race(before, moment))
        fault(fmt::format("{} {} byte {}, which {} has {} with no barrier in between",
                          writes ? "writes" : "reads", whose, byte,
                          name_of(before.block, before.thread), did));
    };
    check(seen.write, "written");
    if (writes) {
      check(seen.read, "read");
      check(seen.other_read, "read");
      seen.write = moment;
    } else {
      if (!is_of_thread(seen.read, moment)) seen.other_read = seen.read;
      seen.read = moment;
    }
  }

  static constexpr size_t kRecent = 8;
  std::map<uintptr_t, Region> regions_;
  Region* recent_[kRecent]{};
  size_t oldest_ = 0;
  std::unordered_map<uintptr_t, Seen> shared_;  // by byte, of the block that runs
  size_t num_accesses_ = 0;
};

Memory& memory() {
  static Memory one;
  return one;
}

// As libtorch's own.
constexpr std::align_val_t kAlignment{64};

class Allocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::kCPU};
    void* begin = ::operator new(bytes, kAlignment);
    std::memset(begin, 0xff, bytes);
    memory().add(begin, bytes);
    return {begin, begin, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void release(void* begin) {
    if (begin == nullptr) return;
    memory().remove(begin);
    ::operator delete(begin, kAlignment);
  }
};

}  // namespace

TensorMemory::TensorMemory() : before_(c10::GetCPUAllocator()) {
  static Allocator allocator;
  c10::SetCPUAllocator(&allocator);
}
TensorMemory::~TensorMemory() { c10::SetCPUAllocator(before_); }

size_t num_accesses() { return memory().num_accesses(); }
void begin_block() { memory().begin_block(); }

}  // namespace piper::testing::cuda_on_cpu

// The functions that the compiler calls.
#define PIPER_LOOKS(bytes)                                                                     \
  extern "C" void __tsan_read##bytes(void* at) {                                               \
    piper::testing::cuda_on_cpu::memory().look(reinterpret_cast<uintptr_t>(at), bytes, false); \
  }                                                                                            \
  extern "C" void __tsan_write##bytes(void* at) {                                              \
    piper::testing::cuda_on_cpu::memory().look(reinterpret_cast<uintptr_t>(at), bytes, true);  \
  }                                                                                            \
  extern "C" void __tsan_unaligned_read##bytes(void* at) { __tsan_read##bytes(at); }           \
  extern "C" void __tsan_unaligned_write##bytes(void* at) { __tsan_write##bytes(at); }
PIPER_LOOKS(1)
PIPER_LOOKS(2)
PIPER_LOOKS(4)
PIPER_LOOKS(8)
PIPER_LOOKS(16)
extern "C" void __tsan_read_range(void* at, size_t bytes) {
  piper::testing::cuda_on_cpu::memory().look(reinterpret_cast<uintptr_t>(at), bytes, false);
}
extern "C" void __tsan_write_range(void* at, size_t bytes) {
  piper::testing::cuda_on_cpu::memory().look(reinterpret_cast<uintptr_t>(at), bytes, true);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" unsigned char __tsan_atomic8_load(const volatile unsigned char* at, int) {
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);  // of a function's static variable, on the host
}
