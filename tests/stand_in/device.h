// A device of libtorch (PrivateUse1) on the host's memory, for tests on machines without a GPU. It
// is strict where a GPU is lenient or silent:
//
//   memory    a tensor's address is one that the host may neither read nor write: who does, dies of
//             SIGSEGV; the device's kernels go through another mapping of the same pages
//   kernels   those of the CPU, so that results are the CPU's bit for bit
//   streams   kSynchronous: an operation runs where it is called. kLate: nothing runs before the
//             host waits, and then any stream goes on that its events allow, drawn from a seed
//   allocator memory of a stream is given to the stream's next allocation at once
//   order     a happens-before checker over streams and events: two operations that use the same
//             bytes, one of which writes them, in an order that no event and no wait of the host
//             says, are a race, whatever the order in which they ran
//
// One device, index 0. Everything is thread-safe. State is the process's, as libtorch's registries
// are.
#pragma once

#include <piper/nn/aten.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace piper::testing::stand_in {

enum class Mode { kSynchronous, kLate };

// Registers it with libtorch, at the first call.
at::Device device();

// Begins anew, between computations: nothing is under way, nobody holds a tensor of it that will be
// read. Counters and races are forgotten.
void begin(Mode mode, uint64_t seed = 1);
// Runs everything that is left.
void finish();

// How often the host waited for a stream: to read what it computes, or because it copied to it
// without saying that it need not wait.
int64_t num_host_reads();
// Counts those by one thread, by its number; with kNamelessThreads those by all that have none.
inline constexpr int64_t kNamelessThreads = -1;
int64_t num_host_reads(int64_t thread);
// Operations that ran, those that found no kernel for shapes alone and so waited among them.
int64_t num_operations();

// Each a sentence, in the order in which they were found; at most 32.
std::vector<std::string> races();

// Waits of streams for events since begin() where the same thread recorded the event and makes the
// stream wait, numbered from 0 in each thread: those of an executor among its own streams.
struct Wait {
  int64_t thread = 0, number = 0;
  bool operator==(const Wait&) const = default;
};
// The calling thread's number, by which its waits are told apart.
void name_thread(int64_t thread);
// Returns how many waits there were in the thread.
int64_t num_waits(int64_t thread);
// The wait is left out, as if the code did not have it.
void leave_out(const Wait& wait);
// Whether the stream's next operation came after the event even without the wait that was left out,
// by what the stream had waited for besides; or no operation came at all.
bool was_implied();
// And which operation of the stream came next, and which it was to come after.
std::string behind_left_out();

}  // namespace piper::testing::stand_in
