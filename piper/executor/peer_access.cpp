#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/executor/loaded_function.h>
#include <piper/executor/peer_access.h>

#include <string>

namespace piper::executor {
namespace {

constexpr int kAlreadyEnabled = 704;  // cudaErrorPeerAccessAlreadyEnabled, and HIP's

bool find_all(PeerRuntime& runtime, const std::string& prefix) {
  return find_loaded(runtime.can_access, prefix + "DeviceCanAccessPeer") &&
         find_loaded(runtime.set_device, prefix + "SetDevice") &&
         find_loaded(runtime.get_device, prefix + "GetDevice") &&
         find_loaded(runtime.enable, prefix + "DeviceEnablePeerAccess") &&
         find_loaded(runtime.forget_error, prefix + "GetLastError");
}

bool enable(const PeerRuntime& runtime, int device, int peer) {
  int can = 0, before = 0;
  if (runtime.can_access(&can, device, peer) != 0 || can == 0) return false;
  if (runtime.get_device(&before) != 0 || runtime.set_device(device) != 0) return false;
  const int result = runtime.enable(peer, 0);
  runtime.forget_error();  // or the next check of a kernel would report it
  return runtime.set_device(before) == 0 && (result == 0 || result == kAlreadyEnabled);
}

}  // namespace

PeerRuntime peer_runtime() {
  static const PeerRuntime found = [] {
    PeerRuntime cuda, hip;
    if (find_all(cuda, "cuda")) return cuda;
    return find_all(hip, "hip") ? hip : PeerRuntime{};
  }();
  return found;
}

void let_devices_meet(const std::vector<at::Device>& devices, const PeerRuntime& runtime) {
  if (runtime.enable == nullptr) return;
  for (const at::Device& device : devices)
    for (const at::Device& peer : devices)
      if (device.is_cuda() && peer.is_cuda() && device.index() != peer.index() &&
          !enable(runtime, device.index(), peer.index()))
        throw InvalidInput(fmt::format(
            "--device: {} cannot read the memory of {}, as ranks of one process do; name one of "
            "them, or train with a process for each (piper launch -n {}), whose bytes go through "
            "the hosts' memory",
            device.str(), peer.str(), devices.size()));
}

}  // namespace piper::executor
