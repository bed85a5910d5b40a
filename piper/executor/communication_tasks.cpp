#include <piper/base/error.h>
#include <piper/collective/all_gather_direct.h>
#include <piper/collective/reductions.h>
#include <piper/collective/ring_hop.h>
#include <piper/executor/communication_tasks.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/nn/expert_residuals.h>
#include <piper/schedule/expert_copies.h>
#include <piper/schedule/migration.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>
#include <array>

namespace piper::executor {
namespace {

strategy::ResidualCode residual_code_of(const strategy::Strategy& strategy,
                                        const at::Tensor& buffer) {
  return strategy::residual_code(strategy, buffer.numel(),
                                 static_cast<int64_t>(buffer.element_size()));
}

}  // namespace

at::Tensor own_residuals(const WeightShares& shares, int32_t layer, nn::Stage& stage,
                         const strategy::Strategy& strategy) {
  const at::Tensor told = stage.weights(layer, strategy::Axis::kExpertData);
  const auto own = shares.own({layer, strategy::Axis::kExpertData}, 0, told.numel());
  return nn::encode_residuals(own.weights, told.narrow(0, own.first, own.weights.numel()),
                              residual_code_of(strategy, told));
}

using graph::Task;
using graph::TaskKind;
using schedule::SegmentKind;
using schedule::SlotKind;

CommunicationTasks::CommunicationTasks(const ExecutorContext& context, const DeviceStreams& streams,
                                       SlotStore& slots, StepState& state)
    : context_(context),
      step_(context.step),
      strategy_(context.strategy),
      stage_(context.stage),
      slots_(slots),
      state_(state),
      rows_(context, slots, state),
      host_copies_(context, streams, slots, state) {}

std::unique_ptr<comm::Operation> CommunicationTasks::start(const Task& task) {
  comm::OperationName name{
      (static_cast<uint64_t>(state_.number) << 32) | static_cast<uint32_t>(task.operation.value),
      schedule::task_name(step_, task)};
  switch (task.kind) {
    case TaskKind::kSend: {
      const at::Tensor& tensor = slots_.read(task, 0).tensor;
      PIPER_DCHECK(tensor.is_contiguous());
      return comm::start_send(context_.tensors, task.peer, std::move(name), bytes_of(tensor));
    }
    case TaskKind::kReceive:
      return start_receive(task, std::move(name));
    case TaskKind::kExchangeCounts:
      return rows_.start_counts(task, std::move(name));
    case TaskKind::kAllToAll:
      return rows_.start(task, std::move(name));
    case TaskKind::kAllReduce:
      return start_all_reduce(task, std::move(name));
    case TaskKind::kAllGather:
      if (step_.segment(task).kind == SegmentKind::kCopiedWeights)
        return start_copies(task, std::move(name));
      return schedule::moves_rows(step_.segment(task).kind)
                 ? start_tokens_gather(task, std::move(name))
                 : start_weights_gather(task, std::move(name));
    case TaskKind::kReduceScatter:
      if (step_.segment(task).kind == SegmentKind::kCopiedGradients)
        return start_copies(task, std::move(name));
      return schedule::moves_rows(step_.segment(task).kind)
                 ? start_tokens_scatter(task, std::move(name))
                 : start_reduce_scatter(task, std::move(name));
    case TaskKind::kStateCollective:
      return start_weights_gather(task, std::move(name));
    case TaskKind::kHostCopy:
      return host_copies_.start(task, std::move(name.what));
    case TaskKind::kRing:
      return start_hop(task, std::move(name));
    case TaskKind::kCompute:
      break;
  }
  PIPER_CHECK(false, "not a communication task");
  return nullptr;
}

void CommunicationTasks::end(const Task& task) {
  if (task.kind == TaskKind::kReduceScatter && schedule::moves_rows(step_.segment(task).kind))
    keep_own_share(task);
  if (task.kind == TaskKind::kAllToAll) rows_.end(task);
  if (sends_residuals(task)) put_residuals_in(task);
  if (task.kind == TaskKind::kHostCopy) host_copies_.end(task);
}

std::unique_ptr<comm::Operation> CommunicationTasks::start_receive(const Task& task,
                                                                   comm::OperationName name) {
  SlotValue& slot = slots_.value(step_.graph.writes(task)[0]);
  const schedule::SlotMeaning& meaning = step_.meaning(step_.graph.writes(task)[0]);
  const int64_t tokens = strategy_.micro_batch_sequences * strategy_.sequence /
                         strategy::ranks_per_token_set(strategy_);
  if (meaning.kind == SlotKind::kExpertState)
    slot.tensor =
        at::empty({meaning.parameters * strategy::state_bytes(strategy_.precision).moved()},
                  at::TensorOptions().dtype(at::kByte).device(context_.options.device));
  else
    slot.tensor = context_.empty({tokens, context_.model.hidden});
  return comm::start_receive(context_.tensors, task.peer, std::move(name),
                             mutable_bytes_of(slot.tensor));
}

CommunicationTasks::OwnRows CommunicationTasks::own_rows(const Task& task,
                                                         const comm::Group& group) {
  const auto size = std::ssize(group.members);
  OwnRows of;
  if (step_.segment(task).kind == SegmentKind::kExpertTensor) {
    const std::vector<int64_t>& counts = slots_.routing_of(task).shared_counts;
    PIPER_CHECK(!counts.empty(), "rows that nobody has counted");
    of.rows = bytes_per_peer(counts, size, 1);
  } else if (step_.segment(task).kind == SegmentKind::kDividedRows) {
    of.rows = slots_.routing_of(task).divided_rows;
    PIPER_CHECK(std::ssize(of.rows) == size, "rows that nobody has divided");
  } else {  // hidden states, keys and values: equal parts
    const int64_t rows = slots_.read(task, 0).tensor.size(0);
    of.rows.assign(static_cast<size_t>(size),
                   task.kind == TaskKind::kAllGather ? rows : rows / size);
  }
  for (int64_t i = 0; i < size; ++i) {
    const int64_t rows = of.rows[static_cast<size_t>(i)];
    if (i == group.index) of.own = rows;
    if (i < group.index) of.before += rows;
    of.all += rows;
  }
  return of;
}

std::unique_ptr<comm::Operation> CommunicationTasks::start_tokens_gather(const Task& task,
                                                                         comm::OperationName name) {
  const comm::Group group = context_.group_of(task);
  const auto size = std::ssize(group.members);
  if (step_.segment(task).kind == SegmentKind::kExpertTensor &&
      task.phase == graph::Phase::kForward)
    rows_.take_shared_counts(task);
  const OwnRows rows = own_rows(task, group);
  const at::Tensor& first = slots_.read(task, 0).tensor;
  std::vector<int64_t> bytes;
  for (const int64_t count : rows.rows)
    bytes.push_back(count * first.size(1) * static_cast<int64_t>(first.element_size()));
  std::unique_ptr<comm::Operation> all;
  for (size_t i = 0; i < step_.graph.writes(task).size(); ++i) {
    const at::Tensor& own = slots_.read(task, i).tensor;
    PIPER_CHECK(own.size(0) == rows.own, "other rows than were counted in " + name.what);
    at::Tensor& whole = slots_.write(task, i).tensor;
    whole = at::empty({rows.all, own.size(1)}, own.options());
    whole.narrow(0, rows.before, rows.own).copy_(own);
    collective::MemberSteps steps = collective::all_gather_direct(group.index, bytes);
    // If a task gathers several slots, the part numbers of one follow those of the slot before.
    for (collective::Step& step : steps.steps)
      step.part += static_cast<uint32_t>(i) * static_cast<uint32_t>(2 * size + 1);
    auto operation = comm::make_exchange(context_.tensors, group, name.what, std::move(steps), {},
                                         mutable_bytes_of(whole));
    operation->start(name.key);
    all = all == nullptr ? std::move(operation) : comm::join(std::move(all), std::move(operation));
  }
  return all;
}

std::unique_ptr<comm::Operation> CommunicationTasks::start_tokens_scatter(
    const Task& task, comm::OperationName name) {
  const comm::Group group = context_.group_of(task);
  const at::Tensor& part = slots_.read(task, 0).tensor;
  std::vector<int64_t> elements;
  for (const int64_t rows : own_rows(task, group).rows) elements.push_back(rows * part.size(1));
  return comm::start_reduce_scatter(context_.tensors, group, std::move(name), element_of(part),
                                    mutable_bytes_of(part), elements, context_.counted_scratch());
}

void CommunicationTasks::keep_own_share(const Task& task) {
  const comm::Group group = context_.group_of(task);
  const at::Tensor& part = slots_.read(task, 0).tensor;
  const OwnRows rows = own_rows(task, group);
  slots_.write(task, 0).tensor = part.narrow(0, rows.before, rows.own).clone();
}

std::unique_ptr<comm::Operation> CommunicationTasks::start_all_reduce(const Task& task,
                                                                      comm::OperationName name) {
  const schedule::Segment& segment = step_.segment(task);
  const comm::Group group = context_.group_of(task);
  if (segment.kind == SegmentKind::kStatistics)
    return comm::start_all_reduce(context_.transport, group, std::move(name),
                                  comm::Element::kFloat64,
                                  std::as_writable_bytes(std::span(state_.statistics)));
  if (segment.kind == SegmentKind::kSequenceCounts) {
    at::Tensor& counts = slots_.write(task, 0).tensor;
    const SlotValue* before = slots_.find(step_.graph.reads(task), SlotKind::kSequenceChoices);
    counts = (before != nullptr ? before->tensor : slots_.routing_of(task).sequence_counts).clone();
    return comm::start_all_reduce(context_.tensors, group, std::move(name), comm::Element::kInt64,
                                  mutable_bytes_of(counts), context_.counted_scratch());
  }
  if (schedule::moves_rows(segment.kind)) {
    at::Tensor& sum = slots_.write(task, 0).tensor;
    sum = slots_.read(task, 0).tensor.clone();
    return comm::start_all_reduce(context_.tensors, group, std::move(name), element_of(sum),
                                  mutable_bytes_of(sum), context_.counted_scratch());
  }
  at::Tensor buffer;
  if (segment.kind == SegmentKind::kTiedEmbedding)
    buffer = stage_.tied_embedding_gradient();
  else
    buffer = stage_.gradients(segment.layer, schedule::axis_of(task.kind, segment.kind));
  PIPER_CHECK(buffer.defined() && buffer.is_contiguous(), "nothing to reduce in " + name.what);
  const comm::Element element = element_of(buffer);
  if (strategy_.reduction == strategy::Reduction::kHierarchical)
    return comm::start_hierarchical_all_reduce(
        context_.tensors, group, std::move(name), element, mutable_bytes_of(buffer),
        context_.topology_of(group), context_.device_scratch());
  return comm::start_all_reduce(context_.tensors, group, std::move(name), element,
                                mutable_bytes_of(buffer), context_.device_scratch());
}

// Sums gradients: afterwards this rank has the sums of its share (optim/parameter_share.h).
std::unique_ptr<comm::Operation> CommunicationTasks::start_reduce_scatter(
    const Task& task, comm::OperationName name) {
  const schedule::Segment& segment = step_.segment(task);
  const strategy::Axis axis = schedule::axis_of(task.kind, segment.kind);
  slots_.hold_gradients(task);  // where nothing was added: zeros
  const at::Tensor buffer = stage_.gradients(segment.layer, axis);
  PIPER_CHECK(buffer.defined() && buffer.is_contiguous(), "nothing to reduce in " + name.what);
  const comm::Group group = context_.group_of(task);
  return comm::start_reduce_scatter(context_.tensors, group, std::move(name), element_of(buffer),
                                    mutable_bytes_of(buffer),
                                    collective::algorithm_of(strategy_.reduction),
                                    context_.topology_of(group), context_.device_scratch());
}

// A slot goes to the next rank of a ring, and its like comes from the rank before. Gradients that
// have come go on with this rank's part.
std::unique_ptr<comm::Operation> CommunicationTasks::start_hop(const Task& task,
                                                               comm::OperationName name) {
  const comm::Group group = context_.group_of(task);
  SlotValue& source = slots_.read(task, 0);
  if (step_.graph.reads(task).size() > 1) source.tensor.add_(slots_.read(task, 1).tensor);
  PIPER_CHECK(source.tensor.is_contiguous(), "keys and values in pieces in " + name.what);
  at::Tensor& target = slots_.write(task, 0).tensor = at::empty_like(source.tensor);
  auto operation = comm::make_exchange(
      context_.tensors, group, name.what,
      collective::ring_hop(group.index, std::ssize(group.members), target.nbytes()),
      bytes_of(source.tensor), mutable_bytes_of(target), context_.counted_scratch());
  operation->start(name.key);
  return operation;
}

std::unique_ptr<comm::Operation> CommunicationTasks::start_weights_gather(
    const Task& task, comm::OperationName name) {
  if (sends_residuals(task)) return start_residuals(task, std::move(name));
  const schedule::Segment& segment = step_.segment(task);
  const strategy::Axis axis = schedule::axis_of(task.kind, segment.kind);
  at::Tensor buffer;
  if (task.kind == TaskKind::kStateCollective) {
    PIPER_CHECK(context_.options.weight_shares != nullptr, "no shares of divided weights");
    buffer = slots_.write(task, 0).tensor = stage_.hold_weights(segment.layer, axis);
    context_.options.weight_shares->fill({segment.layer, axis}, buffer);
  } else {
    buffer = stage_.weights(segment.layer, axis);
  }
  PIPER_CHECK(buffer.defined() && buffer.is_contiguous(), "nothing to gather in " + name.what);
  const comm::Group group = context_.group_of(task);
  return start_gather(context_.tensors, group, std::move(name), buffer, strategy_.reduction,
                      context_.topology_of(group));
}

bool CommunicationTasks::sends_residuals(const Task& task) const {
  return task.kind == TaskKind::kAllGather && strategy::compresses_experts(strategy_) &&
         step_.segment(task).kind == SegmentKind::kExpertWeights;
}

std::unique_ptr<comm::Operation> CommunicationTasks::start_residuals(const Task& task,
                                                                     comm::OperationName name) {
  const int32_t layer = step_.segment(task).layer;
  const ExecutorOptions& options = context_.options;
  PIPER_CHECK(options.weight_shares != nullptr, "no shares of experts");
  const bool is_found = options.residuals != nullptr && options.residuals->contains(layer);
  const at::Tensor message = is_found
                                 ? options.residuals->at(layer)
                                 : own_residuals(*options.weight_shares, layer, stage_, strategy_);
  const comm::Group group = context_.group_of(task);
  at::Tensor& all = state_.residuals[layer] =
      at::empty({std::ssize(group.members) * message.numel()}, message.options());
  all.narrow(0, group.index * message.numel(), message.numel()).copy_(message);
  return start_gather(context_.tensors, group, std::move(name), all, strategy_.reduction,
                      context_.topology_of(group));
}

void CommunicationTasks::put_residuals_in(const Task& task) {
  const int32_t layer = step_.segment(task).layer;
  const at::Tensor told = stage_.weights(layer, strategy::Axis::kExpertData);
  const at::Tensor all = state_.residuals.at(layer);
  const auto size = std::ssize(context_.group_of(task).members);
  const int64_t share = told.numel() / size, sent = all.numel() / size;
  for (int64_t member = 0; member < size; ++member)
    nn::decode_residuals_(told.narrow(0, member * share, share), all.narrow(0, member * sent, sent),
                          residual_code_of(strategy_, told));
  state_.residuals.erase(layer);
}

std::unique_ptr<comm::Operation> CommunicationTasks::start_copies(const Task& task,
                                                                  comm::OperationName name) {
  const schedule::Segment& segment = step_.segment(task);
  PIPER_CHECK(context_.options.placements != nullptr &&
                  context_.options.placements->contains(segment.layer),
              "copies of experts that nobody has placed");
  const balance::ExpertPlacement& placement = context_.options.placements->at(segment.layer);
  const std::array<int64_t, 2> elements =
      schedule::expert_tensors(context_.model, strategy_, segment.layer);
  const std::vector<collective::CopiedBlock> blocks = schedule::copied_blocks(placement, elements);
  const collective::CopiedBuffers buffers = schedule::copied_buffers(placement, elements);
  const comm::Group group = context_.group_of(task);
  const bool spreads = segment.kind == SegmentKind::kCopiedWeights;
  if (!spreads)
    slots_.hold_gradients(task);  // of homes without rows in the last micro-batch: zeros
  const auto buffer_of = [&](strategy::Axis axis, int64_t count) {
    const at::Tensor buffer =
        spreads ? stage_.weights(segment.layer, axis) : stage_.gradients(segment.layer, axis);
    PIPER_CHECK(buffer.defined() && buffer.numel() == count, "other experts in " + name.what);
    return buffer;
  };
  const at::Tensor homes = buffer_of(strategy::Axis::kExpertData, buffers.homes),
                   copies = buffer_of(strategy::Axis::kExpert, buffers.copies);
  const auto& write_steps = spreads ? collective::spread_copies : collective::collect_copies;
  auto operation = comm::make_exchange(
      context_.tensors, group, name.what, write_steps(group.index, buffers, blocks),
      bytes_of(spreads ? homes : copies), mutable_bytes_of(spreads ? copies : homes),
      context_.counted_scratch(), element_of(homes));
  operation->start(name.key);
  return operation;
}

std::unique_ptr<comm::Operation> start_gather(comm::Transport& transport, const comm::Group& group,
                                              comm::OperationName name, const at::Tensor& tensor,
                                              strategy::Reduction algorithm,
                                              const collective::Topology& topology) {
  return comm::start_all_gather(transport, group, std::move(name), element_of(tensor),
                                mutable_bytes_of(tensor), collective::algorithm_of(algorithm),
                                topology);
}

}  // namespace piper::executor
