// The streams of one rank on its device, one for each stream of the graph, and the events that tie
// them together. On the CPU there are none, and every call does nothing.
//
// A task's work goes into its stream; before it the stream waits for the events of the tasks in
// other streams that the graph says it depends on. The host runs ahead: it waits for no event but
// where it reads what a stream computes (nn/host_read.h). Memory belongs to the stream in which it
// was allocated; what other streams use is told to the allocator (keep_for), which gives it to
// nobody else before they are through.
//
// Works with every device for which libtorch has a DeviceGuardImpl (CUDA, HIP, the tests'
// stand-in).
//
// Thread safety: one rank's, as its executor.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <piper/graph/graph.h>
#include <piper/nn/aten.h>

#include <array>
#include <memory>
#include <optional>

namespace piper::executor {

// A place in a stream; null on the CPU.
using DeviceEvent = std::shared_ptr<c10::Event>;

class DeviceStreams {
 public:
  // The compute stream is the one in which the calling thread works when start() is called.
  explicit DeviceStreams(at::Device device);

  bool is_device() const { return !device_.is_cpu(); }
  at::Device device() const { return device_; }

  // Before a step: the exchange stream, whose first tasks may read what the step before has
  // updated, comes after what the calling thread has put into its own. (Sends and receives read and
  // write nothing but what tasks of the step hand them; and what the streams leave behind, a
  // compute task has waited for.)
  void start();

  // While it lives, libtorch works in the stream.
  using Use = std::optional<c10::StreamGuard>;
  Use use(graph::Stream stream) const;

  // After all that is in the stream now. `timed`: that seconds_between() takes it.
  DeviceEvent record(graph::Stream stream, bool timed = false) const;
  // What is put into the stream from now on comes after the event.
  void wait(graph::Stream stream, const DeviceEvent& event) const;

  // The tensor, which may be undefined or the CPU's, is used by the stream.
  void keep_for(graph::Stream stream, const at::Tensor& tensor) const;

  // Waits until what was put into these streams is done; the calling thread's wait counts among
  // nn::num_host_waits(). The last of their ends, timed; nullptr on the CPU.
  DeviceEvent wait_for_all() const;
  // Returns the time between two timed events that were reached.
  static double seconds_between(const DeviceEvent& first, const DeviceEvent& second);

 private:
  const c10::Stream& stream(graph::Stream of) const { return *streams_[static_cast<size_t>(of)]; }

  at::Device device_;
  std::array<std::optional<c10::Stream>, graph::kNumStreams> streams_;
};

// While it lives, the calling thread works on the device, in a stream of its own: what a rank's
// thread has, so that ranks that share a device share no stream. Nothing on the CPU.
class OnDevice {
 public:
  explicit OnDevice(at::Device device);

 private:
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace piper::executor
