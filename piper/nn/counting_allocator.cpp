// Layout of a block: [ header, 64 bytes | storage ]. The header says whose it is; libtorch sees the
// storage only.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/nn/block_cache.h>
#include <piper/nn/counting_allocator.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

namespace piper::nn {
namespace {

struct alignas(64) Counter {
  std::atomic<int64_t> live{0}, peak{0}, limit{0};
};

struct Header {
  int64_t bytes;
  Counter* owner;
};
constexpr size_t kHeaderBytes = c10::gAlignment;
static_assert(sizeof(Header) <= kHeaderBytes);

std::array<Counter, kMaxCountedRanks + 1> counters;  // the last one: threads without a rank
// Never destroyed: tensors may outlive everything.
BlockCache& blocks() {
  static auto* cache = new BlockCache;
  return *cache;
}

thread_local int32_t current_rank = kMaxCountedRanks;

void add(Counter& counter, int64_t bytes) {
  const int64_t live = counter.live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = counter.peak.load(std::memory_order_relaxed);
  while (live > peak &&
         !counter.peak.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
}

void give_back(void* storage) {
  if (storage == nullptr) return;
  auto* block = static_cast<char*>(storage) - kHeaderBytes;
  Header header;
  std::memcpy(&header, block, sizeof header);
  header.owner->live.fetch_sub(header.bytes, std::memory_order_relaxed);
  blocks().give_back(block, static_cast<size_t>(header.bytes) + kHeaderBytes);
}

[[noreturn]] void refuse(const Counter& counter, size_t bytes, int64_t limit) {
  const int64_t index = &counter - counters.data();
  throw OutOfMemory(index == kMaxCountedRanks ? Rank::none() : Rank(index),
                    static_cast<int64_t>(bytes), counter.live.load(std::memory_order_relaxed),
                    limit);
}

char* take(size_t bytes, const Counter& counter) {
  try {
    return static_cast<char*>(blocks().take(bytes + kHeaderBytes));
  } catch (const c10::Error&) {
    refuse(counter, bytes, 0);
  }
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &give_back, c10::DeviceType::CPU};
    Counter& counter = counters[static_cast<size_t>(current_rank)];
    const int64_t limit = counter.limit.load(std::memory_order_relaxed);
    if (limit > 0 &&
        counter.live.load(std::memory_order_relaxed) + static_cast<int64_t>(bytes) > limit)
      refuse(counter, bytes, limit);
    const Header header{static_cast<int64_t>(bytes), &counter};
    char* block = take(bytes, counter);
    std::memcpy(block, &header, sizeof header);
    add(*header.owner, header.bytes);
    char* storage = block + kHeaderBytes;
    return {storage, storage, &give_back, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

std::string refusal(Rank rank, int64_t wanted, int64_t live, int64_t limit) {
  const auto amount = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  return fmt::format(
      "out of memory{}: {} more asked for, {} held, {}",
      rank.valid() ? fmt::format(" on rank {}", rank.value) : "", amount(wanted), amount(live),
      limit > 0 ? fmt::format("{} allowed", amount(limit)) : "and the machine gives no more");
}

Counter& counter_of(Rank rank) {
  PIPER_CHECK(rank.valid() && rank.value < kMaxCountedRanks, "rank beyond the counting allocator");
  return counters[rank.index()];
}

}  // namespace

void install_counting_allocator() {
  static CountingAllocator allocator;
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(&allocator, /*priority=*/100); });
}

OutOfMemory::OutOfMemory(Rank of_rank, int64_t wanted, int64_t live, int64_t limit)
    : std::runtime_error(refusal(of_rank, wanted, live, limit)),
      rank(of_rank),
      wanted_bytes(wanted),
      live_bytes(live),
      limit_bytes(limit) {}

void set_limit(Rank rank, int64_t bytes) {
  counter_of(rank).limit.store(bytes, std::memory_order_relaxed);
}

AllocatingRank::AllocatingRank(Rank rank) : before_(current_rank) {
  counter_of(rank);
  current_rank = rank.value;
}

AllocatingRank::AllocatingRank() : before_(current_rank) { current_rank = kMaxCountedRanks; }

AllocatingRank::~AllocatingRank() { current_rank = before_; }

int64_t live_bytes(Rank rank) { return counter_of(rank).live.load(std::memory_order_relaxed); }

int64_t peak_bytes(Rank rank) { return counter_of(rank).peak.load(std::memory_order_relaxed); }

void reset_peak(Rank rank) {
  Counter& counter = counter_of(rank);
  counter.peak.store(counter.live.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

}  // namespace piper::nn
