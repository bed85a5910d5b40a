// Runs a CUDA grid on one thread of the CPU. Blocks run one after the other, in an order drawn from
// a seed. Every thread of a block has a stack of its own; it runs until it must wait for others (at
// a barrier, in a shuffle), and then any thread that can go on does, drawn from the seed. So a
// result that depends on an order which nothing fixes changes with the seed; memory.h finds most
// such places at once.
//
// What a device leaves undefined is an error here (DeviceFault): a barrier or a shuffle that not
// all threads of the block or the warp reach, or that they reach in different lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>

namespace piper::testing::cuda_on_cpu {

inline constexpr unsigned kWarp = 32, kMostThreads = 1024;
inline constexpr size_t kShuffledBytes = 8;

struct DeviceFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Extent {
  constexpr Extent(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr uint64_t size() const { return uint64_t{x} * y * z; }
  unsigned x, y, z;
};

// The line of who calls.
struct Place {
  Place(std::source_location line = std::source_location::current()) : at(line) {}
  std::source_location at;
};

// run(of): what each thread does.
struct Program {
  void (*run)(const void*);
  const void* of;
};

// The limits of every device of today.
bool can_launch(Extent grid, Extent block);
// Runs `thread` once for each thread of each block. Throws DeviceFault for the first fault; the
// threads that were under way are then forgotten, without a destructor.
void run_grid(Extent grid, Extent block, Program thread);
void set_seed(uint64_t seed);

// The thread that runs calls these.
Extent thread_index();
Extent block_index();
Extent block_extent();
Extent grid_extent();
void meet_block(Place place);
void meet_warp(unsigned mask, Place place);
// `bytes` (kShuffledBytes) become those of the thread of the warp whose number differs in the bits
// of `far`.
void shuffle_xor(unsigned mask, std::byte* bytes, int far, Place place);

// When the thread that runs did something: what barriers order and what they do not.
struct Moment {
  uint32_t launch = 0, block = 0;
  uint16_t thread = 0, block_barriers = 0, warp_barriers = 0;  // barriers that it has passed
};
// Null on the host.
const Moment* now();
bool is_on_own_stack(uintptr_t address);
// "thread (1, 2, 0) of block (3, 0, 0)": of the running launch.
std::string name_of(uint32_t block, uint16_t thread);
// Ends the launch; of the thread that runs.
[[noreturn]] void fault(const std::string& what);

}  // namespace piper::testing::cuda_on_cpu
