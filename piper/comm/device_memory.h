// A rank's memory on a device, for ranks that are threads of one process: copies, and the marks by
// which one rank's streams wait for another's.
//
// Implementations: executor/tensor_device_operations.h.
#pragma once

#include <piper/comm/device_operations.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace piper::comm {

// For `stream` of the operations: that in which the calling thread works (libtorch's current one).
inline void* const kCurrentStream = reinterpret_cast<void*>(~std::uintptr_t{0});

// As DeviceOperations: of one rank, whose thread calls it; every call only puts work into the
// calling thread's current stream and returns.
class DeviceMemory : public DeviceOperations {
 public:
  // A place in a stream: everything that was put there before. Any thread may wait for it, and the
  // last who holds it may drop it.
  class Mark {
   public:
    virtual ~Mark() = default;
  };
  virtual std::shared_ptr<const Mark> mark() = 0;
  // What is put into the stream from now on comes after the mark. The host does not wait.
  virtual void wait(const Mark& mark) = 0;
  // Between two places on devices that do not overlap.
  virtual void copy(std::byte* target, const std::byte* source, size_t bytes) = 0;
};

}  // namespace piper::comm
