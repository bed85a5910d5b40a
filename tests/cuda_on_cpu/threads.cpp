// The checked form of longjmp takes another stack for a fault.
#undef _FORTIFY_SOURCE
#include <fmt/format.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <tests/cuda_on_cpu/memory.h>
#include <tests/cuda_on_cpu/threads.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace piper::testing::cuda_on_cpu {
namespace {

constexpr size_t kStackBytes = size_t{1} << 16;

// A stack and what runs on it.
struct Fiber {
  ucontext_t context{};
  char* stack = nullptr;
  size_t bytes = 0;
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
#else
  jmp_buf left{};
  bool has_begun = false;
#endif
};

#ifdef __SANITIZE_ADDRESS__
// AddressSanitizer is told of every change of stacks.
void change(Fiber& from, Fiber& to) {
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.bytes);
  if (swapcontext(&from.context, &to.context) != 0) std::abort();
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
}
#else
// A context is only entered: each change of contexts would be two calls of the system.
void change(Fiber& from, Fiber& to) {
  from.has_begun = true;
  if (_setjmp(from.left) != 0) return;
  if (to.has_begun) _longjmp(to.left, 1);
  setcontext(&to.context);
  std::abort();
}
#endif

enum class Wait { kNone, kBlock, kWarp, kShuffle };

struct Thread {
  Fiber fiber;
  Moment moment;
  Wait wait = Wait::kNone;
  bool has_ended = false;
  std::source_location at;  // where it waits
  int far = 0;
  std::byte shuffled[kShuffledBytes]{};
};

// "kernels.cu:81"
std::string text(const std::source_location& at) {
  const std::string_view file = at.file_name();
  return fmt::format("{}:{}", file.substr(file.find_last_of('/') + 1), at.line());
}
bool are_same(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && std::string_view(a.file_name()) == b.file_name();
}

Extent part(Extent of, uint64_t number) {
  return {static_cast<unsigned>(number % of.x), static_cast<unsigned>(number / of.x % of.y),
          static_cast<unsigned>(number / of.x / of.y)};
}

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
    if (stacks_ != nullptr) munmap(stacks_, kMostThreads * kStackBytes);
  }

  void run_grid(Extent grid, Extent block, Program thread);
  void set_seed(uint64_t seed) { random_ = seed * 2 + 1; }
  Thread* running() { return running_; }
  Extent grid() const { return grid_; }
  Extent block() const { return block_; }
  Extent thread_index() const { return part(block_, running_->moment.thread); }
  Extent block_index() const { return part(grid_, running_->moment.block); }
  void meet(Wait wait, Place place, int far, std::byte* bytes);
  [[noreturn]] void fault(const std::string& what);

 private:
  static void enter();
  void run_block(uint32_t number);
  void leave();
  Thread* draw();
  uint64_t random(uint64_t below);
  void pass(Thread* first, size_t count);
  std::string why_nobody_goes_on() const;
  void make_stacks();
  void begin_stacks();

  Extent grid_, block_;
  Program program_{};
  std::vector<Thread> threads_;
  size_t num_threads_ = 0;  // of a block
  std::vector<Thread*> can_go_on_;
  size_t num_in_block_barrier_ = 0, num_ended_ = 0;
  std::vector<size_t> num_in_warp_;  // by warp: threads that wait for those of their warp
  Fiber host_;
  Thread* running_ = nullptr;
  std::string fault_;
  uint64_t random_ = 1;
  uint32_t launch_ = 0;
  char* stacks_ = nullptr;
};

Device& device();

uint64_t Device::random(uint64_t below) {  // xorshift64*
  random_ ^= random_ >> 12;
  random_ ^= random_ << 25;
  random_ ^= random_ >> 27;
  return (random_ * 0x2545F4914F6CDD1DULL >> 32) % below;
}

void Device::make_stacks() {
  const auto guard = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* all = mmap(nullptr, kMostThreads * kStackBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) throw std::runtime_error("no memory for the threads' stacks");
  stacks_ = static_cast<char*>(all);
  threads_ = std::vector<Thread>(kMostThreads);
  for (size_t i = 0; i < kMostThreads; ++i) {
    char* lowest = stacks_ + i * kStackBytes;
    if (mprotect(lowest, guard, PROT_NONE) != 0) std::abort();  // whose stack overflows dies there
    threads_[i].fiber.stack = lowest + guard;
    threads_[i].fiber.bytes = kStackBytes - guard;
  }
  begin_stacks();
}

// Nothing is on them.
void Device::begin_stacks() {
  for (Thread& thread : threads_) {
    Fiber& fiber = thread.fiber;
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack, fiber.bytes);
#else
    fiber.has_begun = false;
#endif
    if (getcontext(&fiber.context) != 0) std::abort();
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = fiber.bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Device::enter, 0);
  }
}

// A stack outlives the thread that runs on it: the next block's takes it over.
void Device::enter() {
#ifdef __SANITIZE_ADDRESS__
  Fiber& host = device().host_;
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (host.stack == nullptr) {  // the first to come says where the host's is
    host.stack = static_cast<char*>(const_cast<void*>(stack));
    host.bytes = bytes;
  }
#endif
  for (;;) {
    device().program_.run(device().program_.of);
    Thread& self = *device().running_;
    self.has_ended = true;
    ++device().num_ended_;
    device().leave();
  }
}

Thread* Device::draw() {
  if (can_go_on_.empty()) return nullptr;
  std::swap(can_go_on_[random(can_go_on_.size())], can_go_on_.back());
  Thread* drawn = can_go_on_.back();
  can_go_on_.pop_back();
  return drawn;
}

void Device::leave() {
  Thread* self = running_;
  running_ = draw();
  if (running_ == self) return;
  change(self->fiber, running_ == nullptr ? host_ : running_->fiber);
}

void Device::fault(const std::string& what) {
  fault_ = fmt::format("{}: {}", name_of(running_->moment.block, running_->moment.thread), what);
  Thread* self = running_;
  running_ = nullptr;
  change(self->fiber, host_);
  std::abort();  // nobody comes back to it
}

// Those that waited together go on.
void Device::pass(Thread* first, size_t count) {
  for (Thread* thread = first; thread < first + count; ++thread) {
    if (thread->wait == Wait::kBlock) ++thread->moment.block_barriers;
    if (thread->wait == Wait::kWarp) ++thread->moment.warp_barriers;
    thread->wait = Wait::kNone;
    can_go_on_.push_back(thread);
  }
}

void Device::meet(Wait wait, Place place, int far, std::byte* bytes) {
  Thread& self = *running_;
  self.wait = wait;
  self.at = place.at;
  self.far = far;
  const size_t warp = self.moment.thread / kWarp;
  const bool is_of_block = wait == Wait::kBlock;
  Thread* first = threads_.data() + (is_of_block ? 0 : warp * kWarp);
  const size_t count =
      is_of_block ? num_threads_ : std::min<size_t>(kWarp, num_threads_ - warp * kWarp);
  size_t& waiting = is_of_block ? num_in_block_barrier_ : num_in_warp_[warp];
  // All are compared with the first that waits, so that any two are.
  if (waiting > 0) {
    const Thread* other = first;
    while (other == &self || other->wait == Wait::kNone ||
           (other->wait == Wait::kBlock) != is_of_block)
      ++other;
    if (other->wait != wait || !are_same(other->at, self.at) || other->far != far)
      fault(fmt::format("waits in {} while {} waits in {}", text(self.at),
                        name_of(other->moment.block, other->moment.thread), text(other->at)));
  }
  if (wait == Wait::kShuffle) {
    if (count != kWarp) fault("shuffles in a warp that is not full");
    std::memcpy(self.shuffled, bytes, kShuffledBytes);
  }
  if (++waiting == count) {
    waiting = 0;
    if (wait == Wait::kShuffle) {
      std::byte of_all[kWarp][kShuffledBytes];
      for (size_t i = 0; i < kWarp; ++i) std::memcpy(of_all[i], first[i].shuffled, kShuffledBytes);
      for (size_t i = 0; i < kWarp; ++i)
        std::memcpy(first[i].shuffled, of_all[(i ^ static_cast<size_t>(far)) % kWarp],
                    kShuffledBytes);
    }
    pass(first, count);
  }
  leave();
  if (wait == Wait::kShuffle) std::memcpy(bytes, self.shuffled, kShuffledBytes);
}

std::string Device::why_nobody_goes_on() const {
  size_t waiting = 0;
  const Thread* one = nullptr;
  const Thread* ended = nullptr;
  const Thread* elsewhere = nullptr;
  for (size_t i = 0; i < num_threads_; ++i) {
    const Thread& thread = threads_[i];
    if (thread.has_ended) {
      ended = &thread;
    } else if (one == nullptr || are_same(thread.at, one->at)) {
      one = &thread;
      ++waiting;
    } else {
      elsewhere = &thread;
    }
  }
  const auto name = [](const Thread& thread) {
    return name_of(thread.moment.block, thread.moment.thread);
  };
  std::string said = fmt::format("{} of {} threads wait for the others in {}, {} among them",
                                 waiting, num_threads_, text(one->at), name(*one));
  if (ended != nullptr) said += fmt::format("; {} has ended", name(*ended));
  if (elsewhere != nullptr)
    said += fmt::format("; {} waits in {}", name(*elsewhere), text(elsewhere->at));
  return said;
}

void Device::run_block(uint32_t number) {
  num_in_block_barrier_ = num_ended_ = 0;
  num_in_warp_.assign((num_threads_ + kWarp - 1) / kWarp, 0);
  can_go_on_.clear();
  for (size_t i = 0; i < num_threads_; ++i) {
    Thread& thread = threads_[i];
    thread.moment = {.launch = launch_, .block = number, .thread = static_cast<uint16_t>(i)};
    thread.wait = Wait::kNone;
    thread.has_ended = false;
    can_go_on_.push_back(&thread);
  }
  begin_block();
  running_ = draw();
  change(host_, running_->fiber);
  if (fault_.empty() && num_ended_ < num_threads_) fault_ = why_nobody_goes_on();
}

void Device::run_grid(Extent grid, Extent block, Program thread) {
  if (stacks_ == nullptr) make_stacks();
  grid_ = grid;
  block_ = block;
  program_ = thread;
  num_threads_ = block.size();
  ++launch_;
  std::vector<uint32_t> order(grid.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random(i)]);
  for (const uint32_t number : order) {
    run_block(number);
    if (fault_.empty()) continue;
    begin_stacks();
    throw DeviceFault(std::exchange(fault_, {}));
  }
}

Device the_device;
Device& device() { return the_device; }

}  // namespace

bool can_launch(Extent grid, Extent block) {
  constexpr unsigned kMostBlocks = 65535;
  return grid.size() > 0 && block.size() > 0 && block.size() <= kMostThreads && block.z <= 64 &&
         grid.x <= 0x7fffffffU && grid.y <= kMostBlocks && grid.z <= kMostBlocks;
}

void run_grid(Extent grid, Extent block, Program thread) { device().run_grid(grid, block, thread); }
void set_seed(uint64_t seed) { device().set_seed(seed); }

Extent thread_index() { return device().thread_index(); }
Extent block_index() { return device().block_index(); }
Extent block_extent() { return device().block(); }
Extent grid_extent() { return device().grid(); }

void meet_block(Place place) { device().meet(Wait::kBlock, place, 0, nullptr); }
void meet_warp(unsigned mask, Place place) {
  if (mask != 0xffffffffU) fault("only whole warps are known here");
  device().meet(Wait::kWarp, place, 0, nullptr);
}
void shuffle_xor(unsigned mask, std::byte* bytes, int far, Place place) {
  if (mask != 0xffffffffU) fault("only whole warps are known here");
  device().meet(Wait::kShuffle, place, far, bytes);
}

const Moment* now() {
  const Thread* thread = device().running();
  return thread == nullptr ? nullptr : &thread->moment;
}
bool is_on_own_stack(uintptr_t address) {
  const Fiber& fiber = device().running()->fiber;
  const auto lowest = reinterpret_cast<uintptr_t>(fiber.stack);
  return address >= lowest && address < lowest + fiber.bytes;
}
std::string name_of(uint32_t block, uint16_t thread) {
  const Extent b = part(device().grid(), block), t = part(device().block(), thread);
  return fmt::format("thread ({}, {}, {}) of block ({}, {}, {})", t.x, t.y, t.z, b.x, b.y, b.z);
}
void fault(const std::string& what) { device().fault(what); }

}  // namespace piper::testing::cuda_on_cpu
