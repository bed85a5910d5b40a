// What the kernels read and write, looked at one access at a time. The compiler calls a function
// before each access when a source is compiled with -fsanitize=thread; memory.cpp has functions of
// these names in place of ThreadSanitizer's, so that nothing of it is linked. A fault (threads.h)
// is
//   - an access to what is no tensor, no shared memory and not the thread's own stack: every tensor
//     is allocated apart (TensorMemory), so a row too many is found;
//   - two accesses to the same bytes by different threads of a launch, one of them a write, that no
//     barrier orders: __syncthreads in a block, __syncwarp in a warp (a shuffle orders nothing),
//     and nothing between blocks. Only the last two threads that have read something are known,
//     so a race may be missed; none is made up;
//   - shared memory that is read before the block has written it.
// Built with AddressSanitizer, which a compiler does not combine with these calls, only that one
// looks.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

namespace piper::testing::cuda_on_cpu {

// While it lives, libtorch allocates the CPU's tensors here. Their memory is no number (bytes of
// 0xff) until it is written. One at a time.
class TensorMemory {
 public:
  TensorMemory();
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

 private:
  c10::Allocator* before_;
};

// Accesses that were looked at since the program began: a test that nobody watched would be green.
size_t num_accesses();
// Shared memory holds nothing yet.
void begin_block();

}  // namespace piper::testing::cuda_on_cpu
