// The host's memory as a rank uses it for what need not be on its device all the time (optimizer
// states, as ZeRO-Offload, Ren et al. 2021; activations between forward and backward), and the
// copies between the two. Beside a GPU it is pinned memory. Beside a CPU, whose tensors are in the
// same memory, it is a pool of its own that no counter of live tensors sees, behind a link that
// keeps to a stated rate, so that the path can be run, measured and compared with its prediction
// anywhere.
//
// Copies are done one after the other, in the order in which they were started: on a device in the
// current stream, which is the same for all copies of one object (so that memory may be given again
// as soon as its last copy is in the stream), on a CPU by a thread of this object's.
//
// Thread safety: one object belongs to its rank's thread, but for the tensors it gives.
#pragma once

#include <piper/comm/operations.h>
#include <piper/executor/page_lock.h>
#include <piper/nn/aten.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace piper::executor {

struct HostMemoryOptions {
  at::Device device = at::kCPU;
  // One way, of a CPU's link: copies take so long at least. 0: as fast as they go.
  double bytes_per_second = 0;
  // Where the memory is that of files (without names, gone with the process). Empty: the process's
  // own.
  std::filesystem::path folder;
  // It locks (pins) the process's own pages, beside a GPU.
  std::optional<PageLock> page_lock;
  // Called from another thread when a copy has ended; may be empty.
  std::function<void()> ended;
};

class HostMemory {
 public:
  explicit HostMemory(HostMemoryOptions options);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // So many bytes, of no certain value, until the last handle of them goes. What was given back is
  // given again. Throws IoError when there is no room.
  at::Tensor allocate(int64_t bytes);
  // Both tensors have as many bytes and are contiguous; one of them is the device's.
  struct Copy {
    at::Tensor to, from;
  };
  std::unique_ptr<comm::Operation> start(std::vector<Copy> copies, std::string what);

 private:
  class Pool;
  class Link;
  HostMemoryOptions options_;
  std::shared_ptr<Pool> pool_;  // outlived by what it gave
  std::unique_ptr<Link> link_;  // of a CPU
};

}  // namespace piper::executor
