// Built with a libtorch for CUDA alone.
#include <c10/cuda/CUDAStream.h>
#include <piper/nn/cuda/stream.h>

namespace piper::nn::cuda {

bool computes_with(const at::Tensor& tensor) { return tensor.is_cuda() && has_driver(); }

Place::Place(const at::Tensor& tensor)
    : device_(tensor.device()),
      stream_(c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream()) {}

}  // namespace piper::nn::cuda
