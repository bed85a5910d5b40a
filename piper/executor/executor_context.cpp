#include <piper/base/error.h>
#include <piper/executor/executor_context.h>
#include <piper/executor/tensor_bytes.h>

#include <algorithm>

namespace piper::executor {

comm::Group ExecutorContext::group_of(const graph::Task& task) const {
  const std::vector<Rank>& members = step.graph.group(task.group);
  const auto self = std::ranges::find(members, rank);
  PIPER_CHECK(self != members.end(), "a rank communicates in a group that it is not in");
  return {members, self - members.begin()};
}

collective::Topology ExecutorContext::topology_of(const comm::Group& group) const {
  return options.topology != nullptr ? collective::topology_among(*options.topology, group.members)
                                     : collective::apart(std::ssize(group.members));
}

at::Tensor ExecutorContext::empty(std::vector<int64_t> shape) const {
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(options.device));
}

comm::Allocate ExecutorContext::device_scratch() const {
  if (!is_on_device()) return {};
  return [device = options.device](size_t bytes) { return tensor_scratch_on(device, bytes); };
}

comm::Allocate ExecutorContext::counted_scratch() const {
  return is_on_device() ? device_scratch() : comm::Allocate(tensor_scratch);
}

}  // namespace piper::executor
