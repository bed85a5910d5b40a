// A rank's memory on a device: copies, there and to the host and back, and the marks by which one
// rank's streams wait for another's and a thread of the host learns how far a stream is.
//
// Implementations: executor/tensor_device_operations.h.
#pragma once

#include <piper/comm/device_operations.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

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

  // Memory of the host that the device copies to and from while the host goes on (pinned, where
  // that is needed). Dropped at any time: what is in a stream keeps it.
  class HostBytes {
   public:
    virtual ~HostBytes() = default;
    virtual std::span<std::byte> bytes() = 0;
  };
  virtual std::shared_ptr<HostBytes> host_bytes(size_t size) = 0;
  // All of them. What is copied to the host is there when the stream has come to a mark behind it;
  // what is copied from it does not change before.
  virtual void copy_to_host(HostBytes& target, const std::byte* source) = 0;
  virtual void copy_from_host(std::byte* target, HostBytes& source) = 0;
  // Calls once, from a thread of its own, when the stream has come to the mark, with "", or with
  // what went wrong on the device. What has not been called when this object goes never is.
  using Reached = std::function<void(const std::string& problem)>;
  virtual void when_reached(std::shared_ptr<const Mark> mark, Reached call) = 0;
};

}  // namespace piper::comm
