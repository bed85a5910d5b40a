// GPUs of one process read each other's memory: messages between their ranks are copies from one to
// the other, and sums read what they add where it lies (comm/device_transport.h). The runtime
// permits it for each ordered pair that asks; without, copies take the way through the host, and
// what a kernel reads there is an error of the device.
#pragma once

#include <piper/nn/aten.h>

#include <vector>

namespace piper::executor {

// The runtime's calls, for each pair of numbers of devices; 0 is success.
struct PeerRuntime {
  int (*can_access)(int* can, int device, int peer) = nullptr;
  int (*set_device)(int device) = nullptr;
  int (*get_device)(int* device) = nullptr;
  int (*enable)(int peer, unsigned int flags) = nullptr;  // of the current device
  int (*forget_error)() = nullptr;
};

// Finds these in the CUDA or HIP that libtorch has loaded; empty without.
PeerRuntime peer_runtime();

// For all pairs of different GPUs among `devices`; others have one memory. Again: nothing. Throws
// InvalidInput, one line, where two cannot.
void let_devices_meet(const std::vector<at::Device>& devices,
                      const PeerRuntime& runtime = peer_runtime());

}  // namespace piper::executor
