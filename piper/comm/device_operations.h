// Additions and moves of rows where data lies on a device: what an executor of steps needs beside
// messages and copies, put into a stream.
//
// Implementations: executor/tensor_device_operations.h (libtorch, any device it knows).
#pragma once

#include <piper/collective/steps.h>
#include <piper/comm/operations.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace piper::comm {

// They belong to one rank; one thread at a time calls them. Every call only puts work into `stream`
// (a cudaStream_t) and returns; buffers stay as they are until it has been done. Throws CommError.
class DeviceOperations {
 public:
  virtual ~DeviceOperations() = default;

  // target[i] := target[i] + source[i], as comm::add.
  virtual void add(Element element, std::byte* target, const std::byte* source, int64_t count,
                   void* stream) = 0;

  // Rows picked by number, ready on the device.
  class Rows {
   public:
    virtual ~Rows() = default;
    // Row `to` of target := (or +=) row `from` of source, for each pair.
    virtual void move(std::byte* target, const std::byte* source, void* stream) = 0;
  };
  // Rows of `row_bytes` each, no target row twice; `adds` in elements, else the bytes are copied.
  // What it takes from the device's memory is taken here, as far as the device allows.
  virtual std::unique_ptr<Rows> prepare_rows(std::span<const collective::RowPair> pairs, bool adds,
                                             Element element, int64_t row_bytes) = 0;
};

}  // namespace piper::comm
