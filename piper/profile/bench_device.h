// Where a compute benchmark runs: the host's processor, or an accelerator through libtorch. Needs
// no CUDA headers, so one binary measures whatever its libtorch can drive.
#pragma once

#include <piper/nn/aten.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::profile {

struct BenchDevice {
  at::Device device = at::Device(at::kCPU);

  bool is_cpu() const { return device.is_cpu(); }
  at::TensorOptions with(at::ScalarType dtype) const {
    return at::TensorOptions(device).dtype(dtype);
  }
  // Returns when all that was started on the device has ended. Nothing is ever pending on the CPU.
  void wait() const;
  // Total memory; 0 where libtorch does not say.
  int64_t memory_bytes() const;
};

// The value of --device, everywhere: "cpu", "cuda", "cuda:1", "cuda:0,2" (each once). Throws
// InvalidInput for anything else and for a device that libtorch does not have here: one line that
// says what is missing and what works.
std::vector<at::Device> parse_devices(const std::string& text);
// The same where one computes.
BenchDevice parse_bench_device(const std::string& text);

// From now on libtorch takes only kernels that give the same bits every time, or throws where it
// has none; the CPU's always do. Before the first product of the process.
void compute_deterministically();

}  // namespace piper::profile
