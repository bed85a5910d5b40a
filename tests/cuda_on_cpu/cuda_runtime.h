// The part of the CUDA language and runtime that piper/nn/cuda/kernels.cu uses, in plain C++: found
// in place of CUDA's own header of this name by the test that runs those kernels on the CPU
// (threads.h says how).
//
// What it does not say: how fast anything is, how many registers a thread takes, and what a launch
// bound forbids.
#pragma once

#include <tests/cuda_on_cpu/threads.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace piper::testing::cuda_on_cpu {

// A variable that CUDA has built in: what it is when it is read.
template <Extent (*value)()>
struct BuiltIn {
  template <unsigned Extent::*axis>
  struct Axis {
    operator unsigned() const { return value().*axis; }
  };
  Axis<&Extent::x> x;
  Axis<&Extent::y> y;
  Axis<&Extent::z> z;
};

}  // namespace piper::testing::cuda_on_cpu

#define __global__
#define __device__
#define __host__
#define __shared__ static  // blocks run one after the other
#define __launch_bounds__(threads)

using dim3 = piper::testing::cuda_on_cpu::Extent;
inline constexpr piper::testing::cuda_on_cpu::BuiltIn<piper::testing::cuda_on_cpu::thread_index>
    threadIdx{};
inline constexpr piper::testing::cuda_on_cpu::BuiltIn<piper::testing::cuda_on_cpu::block_index>
    blockIdx{};
inline constexpr piper::testing::cuda_on_cpu::BuiltIn<piper::testing::cuda_on_cpu::block_extent>
    blockDim{};
inline constexpr piper::testing::cuda_on_cpu::BuiltIn<piper::testing::cuda_on_cpu::grid_extent>
    gridDim{};

inline void __syncthreads(piper::testing::cuda_on_cpu::Place place = {}) {
  piper::testing::cuda_on_cpu::meet_block(place);
}
inline void __syncwarp(unsigned mask = 0xffffffffU, piper::testing::cuda_on_cpu::Place place = {}) {
  piper::testing::cuda_on_cpu::meet_warp(mask, place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int far, piper::testing::cuda_on_cpu::Place place = {}) {
  static_assert(std::is_arithmetic_v<T>);
  alignas(T) std::byte bytes[piper::testing::cuda_on_cpu::kShuffledBytes]{};
  static_assert(sizeof(T) <= sizeof(bytes));
  std::memcpy(bytes, &value, sizeof(T));
  piper::testing::cuda_on_cpu::shuffle_xor(mask, bytes, far, place);
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9 };
enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
};
struct CUstream_st;
using cudaStream_t = CUstream_st*;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid configuration argument";
}
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 0;
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

// Runs the whole grid before it returns.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  namespace on_cpu = piper::testing::cuda_on_cpu;
  if (!on_cpu::can_launch(config->gridDim, config->blockDim)) return cudaErrorInvalidConfiguration;
  // The host copies the arguments for each thread: that is no access of the kernel's.
  const auto call = [&]() __attribute__((no_sanitize("thread"))) { kernel(arguments...); };
  on_cpu::run_grid(config->gridDim, config->blockDim,
                   {[](const void* of) __attribute__((no_sanitize("thread"))) {
                      (*static_cast<const decltype(call)*>(of))();
}
, &call
});
return cudaSuccess;
}
