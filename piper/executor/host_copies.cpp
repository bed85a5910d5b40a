#include <piper/base/error.h>
#include <piper/executor/host_copies.h>

#include <algorithm>

namespace piper::executor {

using graph::Task;
using schedule::SlotKind;

namespace {

at::Tensor bytes_on(at::Device device, int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
}

// A tensor on another's memory: without a call that a device would have to know.
at::Tensor on_memory_of(const at::Tensor& other, caffe2::TypeMeta type, int64_t offset,
                        at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(other.storage()),
                                                               other.key_set(), type);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

// All memory behind a tensor.
at::Tensor memory_of(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  return on_memory_of(tensor, caffe2::TypeMeta::Make<uint8_t>(), 0, {bytes}, {1});
}

}  // namespace

HostCopies::HostCopies(const ExecutorContext& context, const DeviceStreams& streams,
                       SlotStore& slots, const StepState& state)
    : context_(context), step_(context.step), streams_(streams), slots_(slots), state_(state) {}

std::unique_ptr<comm::Operation> HostCopies::start(const Task& task, std::string what) {
  PIPER_CHECK(context_.options.host_memory != nullptr,
              "nobody keeps the host's memory for " + what);
  const bool brings = !step_.graph.writes(task).empty();
  const std::span<const graph::SlotId> slots =
      brings ? step_.graph.writes(task) : step_.graph.reads(task);
  const schedule::SlotMeaning& meaning = step_.meaning(slots.front());
  if (meaning.kind != SlotKind::kOptimizerStates)
    return brings ? bring_back(task, std::move(what)) : send_away(task, std::move(what));
  PIPER_CHECK(state_.update->host_states != nullptr,
              "no optimizer states with the host for " + what);
  const at::Tensor host = state_.update->host_states(meaning.segment.layer);
  at::Tensor& here = slots_.value(slots.front()).tensor;
  if (brings) here = bytes_on(context_.options.device, host.numel());
  return context_.options.host_memory->start(
      {brings ? HostMemory::Copy{here, host} : HostMemory::Copy{host, here}}, std::move(what));
}

std::unique_ptr<comm::Operation> HostCopies::send_away(const Task& task, std::string what) {
  Away& away = away_[{step_.segment(task).layer, task.micro_batch}];
  PIPER_CHECK(away.views.empty(), "sent to the host twice: " + what);
  std::vector<HostMemory::Copy> copies;
  std::vector<const c10::StorageImpl*> known;
  for (const graph::SlotId slot : step_.graph.reads(task)) {
    PIPER_DCHECK(slots_.value(slot).tape == nullptr || slots_.value(slot).tape->deferred.empty());
    for_each_tensor(slots_.value(slot), [&](at::Tensor& tensor) {
      away.views.emplace_back();
      if (!tensor.defined() || tensor.device() != context_.options.device) return;
      streams_.keep_for(graph::Stream::kHost, tensor);
      const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
      const auto found = std::ranges::find(known, storage);
      away.views.back() = {.memory = static_cast<size_t>(found - known.begin()),
                           .type = tensor.dtype(),
                           .offset = tensor.storage_offset(),
                           .sizes = tensor.sizes().vec(),
                           .strides = tensor.strides().vec()};
      if (found != known.end()) return;
      known.push_back(storage);
      const at::Tensor from = memory_of(tensor);
      away.memory.push_back(context_.options.host_memory->allocate(from.numel()));
      copies.push_back({away.memory.back(), from});
    });
  }
  return context_.options.host_memory->start(std::move(copies), std::move(what));
}

std::unique_ptr<comm::Operation> HostCopies::bring_back(const Task& task, std::string what) {
  Away& away = away_.at({step_.segment(task).layer, task.micro_batch});
  const std::span<const graph::SlotId> slots = step_.graph.writes(task);
  PIPER_CHECK(away.values.size() == slots.size(), "other slots come back with " + what);
  std::vector<HostMemory::Copy> copies;
  std::vector<at::Tensor> here;
  for (const at::Tensor& memory : away.memory) {
    here.push_back(bytes_on(context_.options.device, memory.numel()));
    copies.push_back({here.back(), memory});
  }
  auto view = away.views.begin();
  for (size_t i = 0; i < slots.size(); ++i) {
    SlotValue& back = slots_.value(slots[i]) = std::move(away.values[i]);
    for_each_tensor(back, [&](at::Tensor& tensor) {
      if (const auto& of = *view++)
        tensor = on_memory_of(here[of->memory], of->type, of->offset, of->sizes, of->strides);
    });
  }
  return context_.options.host_memory->start(std::move(copies), std::move(what));
}

// The device's memory of what has left goes with its slots; what the tensors were stays.
void HostCopies::end(const Task& task) {
  const auto found = away_.find({step_.segment(task).layer, task.micro_batch});
  if (found == away_.end()) return;
  Away& away = found->second;
  if (!step_.graph.writes(task).empty()) {
    away_.erase(found);
    return;
  }
  auto view = away.views.begin();
  for (const graph::SlotId slot : step_.graph.reads(task)) {
    away.values.push_back(std::move(slots_.value(slot)));
    for_each_tensor(away.values.back(), [&](at::Tensor& tensor) {
      if ((view++)->has_value()) tensor.reset();
    });
  }
}

}  // namespace piper::executor
