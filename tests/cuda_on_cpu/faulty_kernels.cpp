#include <cuda_runtime.h>
#include <tests/cuda_on_cpu/faulty_kernels.h>

#include <cstdint>

namespace piper::testing::cuda_on_cpu {
namespace {
__device__ int64_t own_place() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
}  // namespace

__global__ void without_fault(float* x) {
  __shared__ float of_thread[64];
  of_thread[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();
  const float other = of_thread[63 - threadIdx.x];
  __syncthreads();
  of_thread[threadIdx.x] = other;
  x[own_place()] = __shfl_xor_sync(0xffffffffU, other, 1);
}

__global__ void writes_by_block(float* x) {
  if (threadIdx.x == 0) x[blockIdx.x] = 0;
}

__global__ void ends_before_the_barrier(float*) {
  if (threadIdx.x == 5) return;
  __syncthreads();
}

__global__ void meets_in_two_lines(float* x) {
  if (threadIdx.x < 32) {
    __syncthreads();
    x[own_place()] = 1;
  } else {
    __syncthreads();
  }
}

__global__ void shuffles_half_a_warp(float* x) {
  if (threadIdx.x % 32 < 16) x[own_place()] = __shfl_xor_sync(0xffffffffU, 1.0F, 1);
}

__global__ void shuffles_in_a_part_of_a_warp(float* x) {
  x[own_place()] = __shfl_xor_sync(0xffffffffU, 1.0F, 1);
}

__global__ void shuffles_while_others_meet(float* x) {
  if (threadIdx.x % 2 == 0)
    x[own_place()] = __shfl_xor_sync(0xffffffffU, 1.0F, 1);
  else
    __syncwarp();
}

__global__ void reads_its_neighbour_at_once(float*) {
  __shared__ float of_thread[64];
  of_thread[threadIdx.x] = 0;
  __syncthreads();
  of_thread[threadIdx.x] = of_thread[threadIdx.x ^ 32];
}

__global__ void counts_together(float* x) { x[threadIdx.x] += 1; }

__global__ void shuffles_in_place_of_a_barrier(float* x) {
  x[own_place()] = 1;
  __shfl_xor_sync(0xffffffffU, 1.0F, 1);
  x[own_place() ^ 1] = 2;
}

__global__ void meets_its_warp(float* x) {
  x[own_place()] = 1;
  __syncwarp();
  x[own_place() ^ 1] = 2;
}

__global__ void meets_its_warp_alone(float* x) {
  x[own_place()] = 1;
  __syncwarp();
  x[own_place() ^ 32] = 2;
}

__global__ void reads_a_float_too_far(float* x) { x[own_place()] = x[own_place() + 1]; }

__global__ void writes_behind(float* x) { x[own_place() + 1] = 0; }

__global__ void reads_what_nobody_wrote(float* x) {
  __shared__ float of_thread[64];
  if (blockIdx.x == 0) of_thread[threadIdx.x] = 0;
  x[own_place()] = of_thread[threadIdx.x];
}

}  // namespace piper::testing::cuda_on_cpu
