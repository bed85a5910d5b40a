// What is wrong on a device is an error on the CPU, too.
#include <doctest/doctest.h>
#include <piper/nn/aten.h>
#include <tests/cuda_on_cpu/cuda_runtime.h>
#include <tests/cuda_on_cpu/faulty_kernels.h>
#include <tests/cuda_on_cpu/memory.h>
#include <tests/cuda_on_cpu/threads.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace piper::testing::cuda_on_cpu {
namespace {

using Kernel = void (*)(float*);

cudaError_t launch(Kernel kernel, dim3 blocks, dim3 threads, float* x) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  return cudaLaunchKernelEx(&config, kernel, x);
}

// The words of the fault; x has a float for each thread of two blocks.
std::string fault_of(Kernel kernel, unsigned threads = 64, uint64_t seed = 1) {
  set_seed(seed);
  const TensorMemory memory;
  const at::Tensor x = at::zeros({2 * threads});
  try {
    launch(kernel, 2, threads, x.data_ptr<float>());
  } catch (const DeviceFault& fault) {
    return fault.what();
  }
  return "none";
}
bool says(const std::string& fault, const char* what) {
  INFO(fault);
  return fault.find(what) != std::string::npos;
}

TEST_CASE("a kernel without a fault computes the same in every order") {
  const TensorMemory memory;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    set_seed(seed);
    const at::Tensor x = at::zeros({2 * 64});
    CHECK(launch(without_fault, 2, 64, x.data_ptr<float>()) == cudaSuccess);
    for (int64_t i = 0; i < 2 * 64; ++i)
      CHECK(x[i].item<float>() == static_cast<float>(63 - ((i % 64) ^ 1)));
  }
}

TEST_CASE("a barrier or a shuffle that not all threads reach is a fault in every order") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CHECK(says(fault_of(ends_before_the_barrier, 64, seed), "has ended"));
    CHECK(says(fault_of(ends_before_the_barrier, 64, seed), "63 of 64 threads wait"));
    CHECK(says(fault_of(meets_in_two_lines, 64, seed), "waits in faulty_kernels.cpp:"));
    CHECK(says(fault_of(shuffles_half_a_warp, 64, seed), "has ended"));
    CHECK(says(fault_of(shuffles_in_a_part_of_a_warp, 40, seed), "a warp that is not full"));
    CHECK(says(fault_of(shuffles_while_others_meet, 64, seed), "while thread"));
  }
  CHECK(fault_of(without_fault) == "none");  // nothing is left of the faults
}

TEST_CASE("a launch beyond a device's limits is refused, as by CUDA") {
  const TensorMemory memory;
  const at::Tensor x = at::zeros({4096});
  for (const auto& [blocks, threads] : std::vector<std::pair<dim3, dim3>>{
           {0, 32}, {1, 0}, {1, 1025}, {1, dim3(32, 33)}, {dim3(1, 65536), 32}})
    CHECK(launch(writes_by_block, blocks, threads, x.data_ptr<float>()) ==
          cudaErrorInvalidConfiguration);
  CHECK(launch(writes_by_block, 4096, 1, x.data_ptr<float>()) == cudaSuccess);
}

#ifndef __SANITIZE_ADDRESS__  // which looks at memory in place of memory.h

TEST_CASE("accesses that nothing orders, and accesses outside, are faults in every order") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CHECK(says(fault_of(reads_its_neighbour_at_once, 64, seed), "no barrier in between"));
    CHECK(says(fault_of(counts_together, 64, seed), "of block (1, 0, 0)"));
    CHECK(says(fault_of(shuffles_in_place_of_a_barrier, 64, seed), "no barrier in between"));
    CHECK(says(fault_of(meets_its_warp, 64, seed), "none"));
    CHECK(says(fault_of(meets_its_warp_alone, 64, seed), "no barrier in between"));
    CHECK(says(fault_of(reads_what_nobody_wrote, 64, seed), "that nobody has written"));
    const std::string read = fault_of(reads_a_float_too_far, 1, seed);
    CHECK((says(read, "outside of every tensor") || says(read, "no barrier in between")));
    const std::string write = fault_of(writes_behind, 1, seed);
    CHECK((says(write, "outside of every tensor") || says(write, "no barrier in between")));
  }
}

#endif

}  // namespace
}  // namespace piper::testing::cuda_on_cpu
