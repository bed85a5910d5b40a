#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/profile/bench_device.h>
#include <piper/profile/profile.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <ranges>

namespace piper::profile {

void BenchDevice::wait() const {
  if (is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

int64_t BenchDevice::memory_bytes() const {
  if (is_cpu()) return host_memory_bytes();
  try {
    return static_cast<int64_t>(
        at::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
  } catch (const c10::Error&) {
    return 0;
  }
}

std::vector<at::Device> parse_devices(const std::string& text) {
  if (text == "cpu") return {at::Device(at::kCPU)};
  const auto refuse = [&](const std::string& why) {
    return InvalidInput(fmt::format("--device is '{}'{}", text, why));
  };
  if (text != "cuda" && !text.starts_with("cuda:"))
    throw refuse("; allowed: cpu, cuda, cuda:N, cuda:N,M");
  std::vector<int> indices;
  for (const auto part : std::views::split(text == "cuda" ? "0" : text.substr(5), ',')) {
    const std::string number(part.begin(), part.end());
    if (number.empty() || number.size() > 3 ||
        !std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; }))
      throw refuse("; allowed: cpu, cuda, cuda:N, cuda:N,M");
    if (std::ranges::find(indices, std::stoi(number)) != indices.end())
      throw refuse(fmt::format(", which names device {} twice", number));
    indices.push_back(std::stoi(number));
  }
  if (indices.empty()) throw refuse("; allowed: cpu, cuda, cuda:N, cuda:N,M");
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA))
    throw refuse(fmt::format(
        ", but the libtorch that this program was built with ({}) has no CUDA; allowed here: cpu "
        "(for a GPU, build with PIPER_TORCH_DIR naming a torch wheel for CUDA)",
        TORCH_VERSION));
  const int count = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  if (count == 0)
    throw refuse(", but CUDA finds no device here (driver, CUDA_VISIBLE_DEVICES); allowed: cpu");
  at::globalContext().lazyInitDevice(at::kCUDA);  // its allocator is asked before there are tensors
  std::vector<at::Device> devices;
  for (const int index : indices) {
    if (index >= count)
      throw refuse(fmt::format(", but there {}; allowed: cpu, cuda:0{}",
                               count == 1 ? "is one device" : fmt::format("are {} devices", count),
                               count == 1 ? "" : fmt::format(" to cuda:{}", count - 1)));
    devices.emplace_back(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  }
  return devices;
}

BenchDevice parse_bench_device(const std::string& text) {
  const std::vector<at::Device> devices = parse_devices(text);
  if (devices.size() > 1)
    throw InvalidInput(fmt::format(
        "--device is '{}', and this command computes on one; allowed: cpu, cuda, cuda:N", text));
  return {devices.front()};
}

void compute_deterministically() {
  // cuBLAS' products in several streams share scratch unless it is told otherwise.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

}  // namespace piper::profile
