// Communication tasks: from slots and counts to bytes.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/runtime/player.h>

#include <algorithm>
#include <numeric>

namespace piper::runtime {

using graph::Task;
using graph::TaskKind;
using schedule::SegmentKind;
using schedule::SlotKind;

namespace {

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::span<std::byte> mutable_bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// Sums of `counts` over each of `num_peers` equal runs, times bytes_per_row.
std::vector<int64_t> bytes_per_peer(const std::vector<int64_t>& counts, int64_t num_peers,
                                    int64_t bytes_per_row) {
  const auto run = std::ssize(counts) / num_peers;
  std::vector<int64_t> bytes(static_cast<size_t>(num_peers));
  for (int64_t p = 0; p < num_peers; ++p)
    bytes[static_cast<size_t>(p)] =
        bytes_per_row *
        std::accumulate(counts.begin() + p * run, counts.begin() + (p + 1) * run, int64_t{0});
  return bytes;
}

}  // namespace

at::Tensor Player::empty(std::vector<int64_t> shape) const {
  return at::empty(shape, at::TensorOptions().dtype(dtype_));
}

comm::Group Player::group_of(const Task& task) const {
  const std::vector<Rank>& members = step_.graph.group(task.group);
  const auto self = std::ranges::find(members, rank_);
  PIPER_CHECK(self != members.end(), "a rank communicates in a group that it is not in");
  return {members, self - members.begin()};
}

std::unique_ptr<comm::Operation> Player::start(const Task& task) {
  comm::OperationName name{
      (static_cast<uint64_t>(step_number_) << 32) | static_cast<uint32_t>(task.operation.value),
      schedule::task_name(step_, task)};
  switch (task.kind) {
    case TaskKind::kSend: {
      const at::Tensor& tensor = read(task, 0).tensor;
      PIPER_DCHECK(tensor.is_contiguous());
      return comm::start_send(transport_, task.peer, std::move(name), bytes_of(tensor));
    }
    case TaskKind::kReceive: {
      SlotValue& slot = value(step_.graph.writes(task)[0]);
      slot.tensor = empty({strategy_.micro_batch_sequences * strategy_.sequence, model_.hidden});
      return comm::start_receive(transport_, task.peer, std::move(name),
                                 mutable_bytes_of(slot.tensor));
    }
    case TaskKind::kExchangeCounts:
      return start_counts(task, std::move(name));
    case TaskKind::kAllToAll:
      return start_all_to_all(task, std::move(name));
    case TaskKind::kAllReduce:
      return start_all_reduce(task, std::move(name));
    case TaskKind::kCollective:
    case TaskKind::kStateCollective:
    case TaskKind::kCompute:
      break;
  }
  PIPER_CHECK(false, "not a communication task");
  return nullptr;
}

std::unique_ptr<comm::Operation> Player::start_counts(const Task& task, comm::OperationName name) {
  nn::Routing& routing = routing_of(task);
  const comm::Group group = group_of(task);
  routing.received_counts.assign(routing.counts.size(), 0);
  const int64_t count = std::ssize(routing.counts) / std::ssize(group.members);
  return comm::start_exchange_counts(transport_, group, std::move(name), count, routing.counts,
                                     routing.received_counts);
}

std::unique_ptr<comm::Operation> Player::start_all_to_all(const Task& task,
                                                          comm::OperationName name) {
  const nn::Routing& routing = routing_of(task);
  const comm::Group group = group_of(task);
  const auto num_peers = std::ssize(group.members);
  const graph::SlotId written = step_.graph.writes(task)[0];
  const SlotKind kind = step_.meaning(written).kind;
  // Rows travel towards the experts (dispatch, and the backward of combine) or back from them.
  const bool to_experts = kind == SlotKind::kReceived || kind == SlotKind::kExpertRowsGradient;
  if (kind == SlotKind::kReceived && task.phase == graph::Phase::kForward)
    received_counts_[{step_.segment(task).layer, task.micro_batch}] = routing.received_counts;

  const auto row_bytes = static_cast<int64_t>(model_.hidden * at::elementSize(dtype_));
  std::vector<int64_t> sent = bytes_per_peer(routing.counts, num_peers, row_bytes);
  std::vector<int64_t> received = bytes_per_peer(routing.received_counts, num_peers, row_bytes);
  if (!to_experts) std::swap(sent, received);

  const at::Tensor& source = read(task, 0).tensor;
  const int64_t num_rows =
      std::accumulate(received.begin(), received.end(), int64_t{0}) / row_bytes;
  SlotValue& target = value(written);
  target.tensor = empty({num_rows, model_.hidden});
  return comm::start_all_to_all(transport_, group, std::move(name), bytes_of(source),
                                std::move(sent), mutable_bytes_of(target.tensor),
                                std::move(received));
}

std::unique_ptr<comm::Operation> Player::start_all_reduce(const Task& task,
                                                          comm::OperationName name) {
  const schedule::Segment& segment = step_.segment(task);
  const comm::Group group = group_of(task);
  if (segment.kind == SegmentKind::kStatistics)
    return comm::start_all_reduce(transport_, group, std::move(name), comm::Element::kFloat64,
                                  std::as_writable_bytes(std::span(statistics_)));
  at::Tensor buffer;
  if (segment.kind == SegmentKind::kDenseGradients) buffer = stage_.dense_gradients(segment.layer);
  if (segment.kind == SegmentKind::kExpertGradients)
    buffer = stage_.expert_gradients(segment.layer);
  if (segment.kind == SegmentKind::kTiedEmbedding) buffer = stage_.tied_embedding_gradient();
  PIPER_CHECK(buffer.defined() && buffer.is_contiguous(), "nothing to reduce in " + name.what);
  const comm::Element element =
      dtype_ == at::kDouble ? comm::Element::kFloat64 : comm::Element::kFloat32;
  return comm::start_all_reduce(transport_, group, std::move(name), element,
                                mutable_bytes_of(buffer));
}

}  // namespace piper::runtime
