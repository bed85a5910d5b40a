// Built with a libtorch for CUDA alone.
#include <c10/cuda/CUDAStream.h>
#include <piper/nn/cuda/stream.h>

namespace piper::nn::cuda {

Stream current_stream(const at::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

}  // namespace piper::nn::cuda
