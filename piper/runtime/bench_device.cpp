#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/runtime/bench_device.h>
#include <piper/runtime/profile.h>

#include <algorithm>

namespace piper::runtime {

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

BenchDevice parse_bench_device(const std::string& text) {
  if (text == "cpu") return {};
  const auto refuse = [&](const std::string& why) {
    return InvalidInput(fmt::format("--device is '{}'{}; allowed: cpu, cuda, cuda:N", text, why));
  };
  if (text != "cuda" && !text.starts_with("cuda:")) throw refuse("");
  const std::string number = text == "cuda" ? "0" : text.substr(5);
  if (number.empty() || number.size() > 3 ||
      !std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; }))
    throw refuse("");
  if (!at::globalContext().hasCUDA()) throw refuse(", but this libtorch has no CUDA device here");
  const int index = std::stoi(number);
  const int count = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  if (index >= count) throw refuse(fmt::format(", but there are {} devices", count));
  return {at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index))};
}

}  // namespace piper::runtime
