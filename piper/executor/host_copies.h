// Copies between the device and the host (schedule/host_copies.h): optimizer states of a layer, and
// what slots hold of the activations that a chunk of layers keeps of a micro-batch.
#pragma once

#include <piper/executor/device_streams.h>
#include <piper/executor/executor_context.h>
#include <piper/executor/slot_store.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace piper::executor {

// One thread. What it is given outlives it.
class HostCopies {
 public:
  HostCopies(const ExecutorContext& context, const DeviceStreams& streams, SlotStore& slots,
             const StepState& state);

  // A task of kind kHostCopy, which `what` names.
  std::unique_ptr<comm::Operation> start(const graph::Task& task, std::string what);
  // Once its operation has ended: the device's memory of what has left goes with its slots.
  void end(const graph::Task& task);

 private:
  // What slots held that are with the host: their values without the device's memory, and what of
  // it each tensor was. Tensors that share memory share it when they are back.
  struct Away {
    struct View {
      size_t memory = 0;
      caffe2::TypeMeta type;
      int64_t offset = 0;  // elements
      std::vector<int64_t> sizes, strides;
    };
    std::vector<SlotValue> values;           // in the order of the slots
    std::vector<std::optional<View>> views;  // of the tensors of all of them; none: it stayed
    std::vector<at::Tensor> memory;
  };

  std::unique_ptr<comm::Operation> send_away(const graph::Task& task, std::string what);
  std::unique_ptr<comm::Operation> bring_back(const graph::Task& task, std::string what);

  const ExecutorContext& context_;
  const schedule::StepGraph& step_;
  const DeviceStreams& streams_;
  SlotStore& slots_;
  const StepState& state_;
  std::map<LayerKey, Away> away_;  // by first layer
};

}  // namespace piper::executor
