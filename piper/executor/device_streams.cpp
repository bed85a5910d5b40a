#include <c10/core/impl/VirtualGuardImpl.h>
#include <piper/executor/device_streams.h>
#include <piper/nn/host_read.h>

namespace piper::executor {
namespace {

c10::impl::VirtualGuardImpl driver(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

DeviceStreams::DeviceStreams(at::Device device) : device_(device) {
  if (!is_device()) return;
  for (size_t of = 0; of < streams_.size(); ++of)
    if (of != static_cast<size_t>(graph::Stream::kCompute))
      streams_[of] = driver(device_).getStreamFromGlobalPool(device_);
}

void DeviceStreams::start() {
  if (!is_device()) return;
  auto& compute = streams_[static_cast<size_t>(graph::Stream::kCompute)];
  compute = driver(device_).getStream(device_);
  wait(graph::Stream::kExchange, record(graph::Stream::kCompute));
}

DeviceStreams::Use DeviceStreams::use(graph::Stream of) const {
  return is_device() ? Use(std::in_place, stream(of)) : Use(std::nullopt);
}

DeviceEvent DeviceStreams::record(graph::Stream of, bool timed) const {
  if (!is_device()) return nullptr;
  auto event = std::make_shared<c10::Event>(
      device_.type(), timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
  event->record(stream(of));
  return event;
}

void DeviceStreams::wait(graph::Stream of, const DeviceEvent& event) const {
  if (event != nullptr) event->block(stream(of));
}

void DeviceStreams::keep_for(graph::Stream of, const at::Tensor& tensor) const {
  if (is_device() && tensor.defined() && tensor.device() == device_)
    tensor.record_stream(stream(of));
}

DeviceEvent DeviceStreams::wait_for_all() const {
  if (!is_device()) return nullptr;
  constexpr auto kCompute = graph::Stream::kCompute;
  for (int i = 0; i < graph::kNumStreams; ++i)
    if (const auto of = static_cast<graph::Stream>(i); of != kCompute) wait(kCompute, record(of));
  DeviceEvent end = record(kCompute, /*timed=*/true);
  nn::count_host_wait();
  end->synchronize();
  return end;
}

double DeviceStreams::seconds_between(const DeviceEvent& first, const DeviceEvent& second) {
  return first->elapsedTime(*second) * 1e-3;
}

OnDevice::OnDevice(at::Device device) {
  if (!device.is_cpu()) guard_.emplace(driver(device).getStreamFromGlobalPool(device));
}

}  // namespace piper::executor
