// Additions and moves of rows by libtorch, on any device it knows: the CPU, or a GPU's stream.
#pragma once

#include <piper/comm/device_memory.h>
#include <piper/nn/aten.h>

#include <memory>

namespace piper::executor {

// Buffers lie on `device`. On the CPU there are no streams: a call returns when its work is done,
// and marks mean nothing. The numbers of rows lie on the device from prepare_rows on; a move that
// picks rows in any order takes libtorch's memory for them while it runs.
std::unique_ptr<comm::DeviceMemory> make_tensor_device_operations(const at::Device& device);

}  // namespace piper::executor
