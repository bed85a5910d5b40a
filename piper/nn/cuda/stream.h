#pragma once

#include <piper/nn/aten.h>
#include <piper/nn/cuda/kernels.h>

namespace piper::nn::cuda {

// libtorch's current one on the tensor's device, which has to be the current device.
Stream current_stream(const at::Tensor& tensor);

}  // namespace piper::nn::cuda
