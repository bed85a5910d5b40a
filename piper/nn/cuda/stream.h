#pragma once

#include <c10/core/DeviceGuard.h>
#include <piper/nn/aten.h>
#include <piper/nn/cuda/kernels.h>

namespace piper::nn::cuda {

// Whether these kernels compute with the tensor: it lies on a CUDA device, and they were built.
// Thread-safe.
bool computes_with(const at::Tensor& tensor);

// Where a tensor is computed with: while it lives, the tensor's device is the thread's current one.
class Place {
 public:
  explicit Place(const at::Tensor& tensor);
  // libtorch's current one on the device.
  Stream stream() const { return stream_; }

 private:
  c10::DeviceGuard device_;
  Stream stream_;
};

}  // namespace piper::nn::cuda
