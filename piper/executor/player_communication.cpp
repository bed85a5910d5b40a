// Communication tasks: from slots and counts to bytes.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/collective/all_gather_direct.h>
#include <piper/collective/reductions.h>
#include <piper/collective/ring_hop.h>
#include <piper/cost/shard.h>
#include <piper/executor/player.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/executor/token_exchange.h>
#include <piper/schedule/expert_copies.h>
#include <piper/schedule/migration.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace piper::executor {

using graph::Task;
using graph::TaskKind;
using schedule::SegmentKind;
using schedule::SlotKind;

namespace {

collective::ReductionForm form_of(strategy::Reduction reduction) {
  return reduction == strategy::Reduction::kHierarchical ? collective::ReductionForm::kHierarchical
                                                         : collective::ReductionForm::kDirect;
}

// Of Segment::chunk, from 0.
int16_t place_of_chunk(const schedule::Segment& segment) {
  return std::max<int16_t>(0, static_cast<int16_t>(segment.chunk - 1));
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
  return at::empty(shape, at::TensorOptions().dtype(dtype_).device(options_.device));
}

comm::Allocate Player::device_scratch() const {
  if (!streams_.is_device()) return {};
  return [device = options_.device](size_t bytes) { return tensor_scratch_on(device, bytes); };
}

comm::Allocate Player::counted_scratch() const {
  return streams_.is_device() ? device_scratch() : comm::Allocate(tensor_scratch);
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
      return comm::start_send(tensors_, task.peer, std::move(name), bytes_of(tensor));
    }
    case TaskKind::kReceive: {
      SlotValue& slot = value(step_.graph.writes(task)[0]);
      const schedule::SlotMeaning& meaning = step_.meaning(step_.graph.writes(task)[0]);
      if (meaning.kind == SlotKind::kExpertState)
        slot.tensor =
            at::empty({meaning.parameters * cost::state_bytes(strategy_.precision).moved()},
                      at::TensorOptions().dtype(at::kByte).device(options_.device));
      else
        slot.tensor = empty({own_tokens(), model_.hidden});
      return comm::start_receive(tensors_, task.peer, std::move(name),
                                 mutable_bytes_of(slot.tensor));
    }
    case TaskKind::kExchangeCounts:
      if (strategy::deduplicates(strategy_))
        return token_exchange_of(task).start_telling(std::move(name), routing_of(task),
                                                     row_bytes());
      return start_counts(task, std::move(name));
    case TaskKind::kAllToAll:
      if (strategy::deduplicates(strategy_)) return start_token_exchange(task, std::move(name));
      return start_all_to_all(task, std::move(name));
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
      return start_host_copy(task, std::move(name.what));
    case TaskKind::kRing:
      return start_hop(task, std::move(name));
    case TaskKind::kCompute:
      break;
  }
  PIPER_CHECK(false, "not a communication task");
  return nullptr;
}

Player::ChunkKey Player::key_of(const Task& task) const {
  const schedule::Segment& segment = step_.segment(task);
  return {segment.layer, task.micro_batch, segment.chunk};
}

int64_t Player::row_bytes() const {
  return static_cast<int64_t>(model_.hidden * at::elementSize(dtype_));
}

collective::Topology Player::topology_of(const comm::Group& group) const {
  return options_.topology != nullptr
             ? collective::topology_among(*options_.topology, group.members)
             : collective::apart(std::ssize(group.members));
}

const Player::GroupExchange& Player::exchange_of(const Task& task, const comm::Group& group) {
  const auto found = exchanges_.find(task.group);
  if (found != exchanges_.end()) return found->second;
  collective::Topology topology = topology_of(group);
  collective::DispatchCombineCounts told(strategy_.all_to_all, group.index, topology);
  return exchanges_.emplace(task.group, GroupExchange{std::move(topology), std::move(told)})
      .first->second;
}

std::unique_ptr<comm::Operation> Player::start_counts(const Task& task, comm::OperationName name) {
  if (step_.segment(task).kind == SegmentKind::kExpertTensor)
    return start_shared_counts(task, std::move(name));
  const std::vector<nn::Routing*> chunks = routings_of(task);
  const comm::Group group = group_of(task);
  const auto num_peers = std::ssize(group.members);
  std::vector<std::vector<int64_t>> counts;
  for (nn::Routing* routing : chunks) {
    counts.push_back(sent_counts(*routing));
    routing->received_counts.assign(counts.back().size(), 0);
  }
  const int64_t num_experts = std::ssize(counts[0]) / num_peers;  // of each peer
  const collective::DispatchCombineCounts& told = exchange_of(task, group).told;
  if (told.empty() && chunks.size() == 1 && !strategy::fuses_exchange(strategy_))
    return comm::start_exchange_counts(transport_, group, std::move(name), num_experts,
                                       chunks[0]->counts, chunks[0]->received_counts);

  CountMessages& messages = count_messages_[{step_.segment(task).layer, task.micro_batch}];
  messages = {};
  std::vector<int64_t> sent_bytes, received_bytes;
  const std::vector<int32_t> none;
  for (int64_t p = 0; p < num_peers; ++p) {
    const std::vector<int32_t>& to_tell = told.empty() ? none : told.to_tell(p);
    const std::vector<int32_t>& to_hear = told.empty() ? none : told.to_hear(p);
    for (const std::vector<int64_t>& of_chunk : counts) {
      const std::vector<int64_t> rows = bytes_per_peer(of_chunk, num_peers, 1);
      const auto first = of_chunk.begin() + p * num_experts;
      messages.sent.insert(messages.sent.end(), first, first + num_experts);
      for (const int32_t about : to_tell) messages.sent.push_back(rows[static_cast<size_t>(about)]);
    }
    const auto bytes = [&](const std::vector<int32_t>& more) {
      return std::ssize(chunks) * (num_experts + std::ssize(more)) *
             static_cast<int64_t>(sizeof(int64_t));
    };
    sent_bytes.push_back(bytes(to_tell));
    received_bytes.push_back(bytes(to_hear));
    messages.first_received.push_back(messages.received.size());
    messages.received_a_chunk.push_back(static_cast<size_t>(num_experts) + to_hear.size());
    messages.received.resize(messages.received.size() +
                             chunks.size() * messages.received_a_chunk.back());
  }
  return comm::start_all_to_all(transport_, group, std::move(name),
                                std::as_bytes(std::span(messages.sent)), std::move(sent_bytes),
                                std::as_writable_bytes(std::span(messages.received)),
                                std::move(received_bytes));
}

void Player::read_counts(const CountMessages& messages, int16_t chunk, nn::Routing& routing) const {
  const auto num_peers = messages.first_received.size();
  const size_t num_experts = routing.received_counts.size() / num_peers;
  for (size_t p = 0; p < num_peers; ++p)
    std::copy_n(messages.received.begin() + static_cast<std::ptrdiff_t>(messages.place(p, chunk)),
                num_experts,
                routing.received_counts.begin() + static_cast<std::ptrdiff_t>(p * num_experts));
}

// Bytes from one member to another as far as this one knows them: its own row and column, and what
// others told it.
collective::CountOf Player::count_of(const Task& task, const comm::Group& group,
                                     const nn::Routing& routing, bool to_experts,
                                     int64_t row_bytes) {
  const auto num_peers = std::ssize(group.members);
  const collective::DispatchCombineCounts* told = &exchange_of(task, group).told;
  const CountMessages* messages =
      told->empty() ? nullptr : &count_messages_.at({step_.segment(task).layer, task.micro_batch});
  return [=, self = group.index, chunk = place_of_chunk(step_.segment(task)),
          out = bytes_per_peer(sent_counts(routing), num_peers, row_bytes),
          in = bytes_per_peer(routing.received_counts, num_peers, row_bytes),
          num_experts = std::ssize(routing.received_counts) / num_peers](int64_t from, int64_t to) {
    if (!to_experts) std::swap(from, to);  // what went out comes back
    if (from == self) return out[static_cast<size_t>(to)];
    if (to == self) return in[static_cast<size_t>(from)];
    PIPER_CHECK(messages != nullptr, "counts of others that nobody told");
    const std::vector<int32_t>& heard = told->to_hear(from);
    const auto found = std::ranges::lower_bound(heard, static_cast<int32_t>(to));
    PIPER_CHECK(found != heard.end() && *found == to, "a count that nobody told");
    const size_t place = messages->place(static_cast<size_t>(from), chunk) +
                         static_cast<size_t>(num_experts + (found - heard.begin()));
    return row_bytes * messages->received[place];
  };
}

std::unique_ptr<comm::Operation> Player::start_all_to_all(const Task& task,
                                                          comm::OperationName name) {
  nn::Routing& routing = routing_of(task);
  const comm::Group group = group_of(task);
  const graph::SlotId written = step_.graph.writes(task)[0];
  const SlotKind kind = step_.meaning(written).kind;
  // Rows travel towards the experts (dispatch, and the backward of combine) or back from them.
  const bool to_experts = kind == SlotKind::kReceived || kind == SlotKind::kExpertRowsGradient;
  if (kind == SlotKind::kReceived && task.phase == graph::Phase::kForward) {
    const schedule::Segment& segment = step_.segment(task);
    if (const auto told = count_messages_.find({segment.layer, task.micro_batch});
        told != count_messages_.end())
      read_counts(told->second, place_of_chunk(segment), routing);
    received_counts_[key_of(task)] = routing.received_counts;
  }
  const std::vector<int64_t> received = to_experts ? routing.received_counts : sent_counts(routing);
  SlotValue& target = value(written);
  if (is_fused(task) && to_experts) target.sent = repeated(read(task, 0).tensor, routing);
  const at::Tensor& source = target.sent.defined() ? target.sent : read(task, 0).tensor;
  target.tensor =
      empty({std::accumulate(received.begin(), received.end(), int64_t{0}), model_.hidden});
  collective::AllToAllOptions how;
  if (strategy_.all_to_all_chunk_bytes > 0) how.chunk = strategy_.all_to_all_chunk_bytes;
  auto operation = comm::make_exchange(
      tensors_, group, name.what,
      collective::all_to_all(strategy_.all_to_all, group.index, exchange_of(task, group).topology,
                             count_of(task, group, routing, to_experts, row_bytes()), how),
      bytes_of(source), mutable_bytes_of(target.tensor), counted_scratch());
  operation->start(name.key);
  return operation;
}

bool Player::is_fused(const Task& task) const {
  return task.kind == TaskKind::kAllToAll && strategy::fuses_exchange(strategy_);
}

std::vector<int64_t> Player::sent_counts(const nn::Routing& routing) const {
  if (!strategy::fuses_exchange(strategy_)) return routing.counts;
  const auto each = std::ssize(routing.counts) / strategy_.mesh.ep;
  std::vector<int64_t> counts;
  for (auto block = routing.counts.begin(); block != routing.counts.end(); block += each)
    for (int64_t i = 0; i < strategy_.mesh.etp; ++i)
      counts.insert(counts.end(), block, block + each);
  return counts;
}

at::Tensor Player::repeated(const at::Tensor& rows, const nn::Routing& routing) const {
  std::vector<at::Tensor> blocks;
  int64_t first = 0;
  for (const int64_t count : bytes_per_peer(routing.counts, strategy_.mesh.ep, 1)) {
    blocks.insert(blocks.end(), static_cast<size_t>(strategy_.mesh.etp),
                  rows.narrow(0, first, count));
    first += count;
  }
  return at::cat(blocks);
}

void Player::end_fused_exchange(const Task& task) {
  SlotValue& target = value(step_.graph.writes(task)[0]);
  if (target.sent.defined()) {
    target.sent.reset();
    return;
  }
  const std::vector<int64_t> counts = bytes_per_peer(routing_of(task).counts, strategy_.mesh.ep, 1);
  const at::Tensor sum =
      empty({std::accumulate(counts.begin(), counts.end(), int64_t{0}), model_.hidden});
  int64_t first = 0;
  for (const int64_t count : counts) {
    const at::Tensor own = sum.narrow(0, first, count);
    const int64_t parts = strategy_.mesh.etp * first;
    own.copy_(target.tensor.narrow(0, parts, count));
    for (int64_t i = 1; i < strategy_.mesh.etp; ++i)
      own.add_(target.tensor.narrow(0, parts + i * count, count));
    first += count;
  }
  target.tensor = sum;
}

TokenExchange& Player::token_exchange_of(const Task& task) {
  std::unique_ptr<TokenExchange>& exchange =
      token_exchanges_[{step_.segment(task).layer, task.micro_batch}];
  if (exchange == nullptr) {
    const comm::Group group = group_of(task);
    exchange = std::make_unique<TokenExchange>(transport_, tensors_, group, topology_of(group),
                                               strategy_.all_to_all_chunk_bytes, counted_scratch());
  }
  return *exchange;
}

std::unique_ptr<comm::Operation> Player::start_token_exchange(const Task& task,
                                                              comm::OperationName name) {
  TokenExchange& exchange = token_exchange_of(task);
  nn::Routing& routing = routing_of(task);
  const at::Tensor& source = read(task, 0).tensor;
  const graph::SlotId written = step_.graph.writes(task)[0];
  at::Tensor& target = value(written).tensor;
  const std::pair place{step_.segment(task).layer, task.micro_batch};
  const SlotKind kind = step_.meaning(written).kind;
  if (kind == SlotKind::kReceived) {
    const bool is_new = task.phase == graph::Phase::kForward;
    exchange.hear(routing, is_new);
    if (is_new) distinct_tokens_[place] = exchange.distinct();
    return exchange.start_to_experts(std::move(name), source, target, is_new ? &routing : nullptr);
  }
  if (kind == SlotKind::kExpertRowsGradient)
    return exchange.start_to_experts(std::move(name), source, target, nullptr);
  PIPER_CHECK(kind == SlotKind::kReturned || kind == SlotKind::kRowsGradient, name.what);
  at::Tensor* g_weights =
      kind == SlotKind::kRowsGradient ? &value(step_.graph.writes(task)[1]).tensor : nullptr;
  return exchange.start_back(std::move(name), source, target, routing, g_weights);
}

std::unique_ptr<comm::Operation> Player::start_shared_counts(const Task& task,
                                                             comm::OperationName name) {
  const std::vector<nn::Routing*> chunks = routings_of(task);
  const std::pair place{step_.segment(task).layer, task.micro_batch};
  const comm::Group group = group_of(task);
  const auto each = std::ssize(chunks[0]->received_counts), of_rank = each * std::ssize(chunks);
  std::vector<int64_t>& all = shared_messages_[place];
  all.assign(static_cast<size_t>(of_rank * std::ssize(group.members)), 0);
  const auto told = count_messages_.find(place);
  for (int64_t c = 0; c < std::ssize(chunks); ++c) {
    nn::Routing& routing = *chunks[static_cast<size_t>(c)];
    if (told != count_messages_.end()) read_counts(told->second, static_cast<int16_t>(c), routing);
    std::ranges::copy(routing.received_counts, all.begin() + group.index * of_rank + c * each);
  }
  return comm::start_all_gather(transport_, group, std::move(name), comm::Element::kInt64,
                                std::as_writable_bytes(std::span(all)),
                                collective::ReductionForm::kDirect, topology_of(group));
}

// A chunk's part of what all ranks that share experts have told each other.
void Player::read_shared_counts(const Task& task, nn::Routing& routing) const {
  const schedule::Segment& segment = step_.segment(task);
  const std::vector<int64_t>& all = shared_messages_.at({segment.layer, task.micro_batch});
  const auto each = std::ssize(routing.received_counts),
             of_rank = std::ssize(all) / std::ssize(step_.graph.group(task.group));
  routing.shared_counts.clear();
  for (int64_t at = place_of_chunk(segment) * each; at < std::ssize(all); at += of_rank)
    routing.shared_counts.insert(routing.shared_counts.end(), all.begin() + at,
                                 all.begin() + at + each);
}

Player::OwnRows Player::own_rows(const Task& task, const comm::Group& group) {
  const auto size = std::ssize(group.members);
  OwnRows of;
  if (step_.segment(task).kind == SegmentKind::kExpertTensor) {
    const std::vector<int64_t>& counts = routing_of(task).shared_counts;
    PIPER_CHECK(!counts.empty(), "rows that nobody has counted");
    of.rows = bytes_per_peer(counts, size, 1);
  } else if (step_.segment(task).kind == SegmentKind::kDividedRows) {
    of.rows = routing_of(task).divided_rows;
    PIPER_CHECK(std::ssize(of.rows) == size, "rows that nobody has divided");
  } else {  // hidden states, keys and values: equal parts
    const int64_t rows = read(task, 0).tensor.size(0);
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

std::unique_ptr<comm::Operation> Player::start_tokens_gather(const Task& task,
                                                             comm::OperationName name) {
  const comm::Group group = group_of(task);
  const auto size = std::ssize(group.members);
  if (step_.segment(task).kind == SegmentKind::kExpertTensor &&
      task.phase == graph::Phase::kForward) {
    read_shared_counts(task, routing_of(task));
    shared_counts_[key_of(task)] = routing_of(task).shared_counts;
  }
  const OwnRows rows = own_rows(task, group);
  const at::Tensor& first = read(task, 0).tensor;
  std::vector<int64_t> bytes;
  for (const int64_t count : rows.rows)
    bytes.push_back(count * first.size(1) * static_cast<int64_t>(first.element_size()));
  std::unique_ptr<comm::Operation> all;
  for (size_t i = 0; i < step_.graph.writes(task).size(); ++i) {
    const at::Tensor& own = read(task, i).tensor;
    PIPER_CHECK(own.size(0) == rows.own, "other rows than were counted in " + name.what);
    at::Tensor& whole = write(task, i).tensor;
    whole = at::empty({rows.all, own.size(1)}, own.options());
    whole.narrow(0, rows.before, rows.own).copy_(own);
    collective::MemberSteps steps = collective::all_gather_direct(group.index, bytes);
    // Of a task that gathers several slots, the parts of one follow those of the one before.
    for (collective::Step& step : steps.steps)
      step.part += static_cast<uint32_t>(i) * static_cast<uint32_t>(2 * size + 1);
    auto operation = comm::make_exchange(tensors_, group, name.what, std::move(steps), {},
                                         mutable_bytes_of(whole));
    operation->start(name.key);
    all = all == nullptr ? std::move(operation) : comm::join(std::move(all), std::move(operation));
  }
  return all;
}

std::unique_ptr<comm::Operation> Player::start_tokens_scatter(const Task& task,
                                                              comm::OperationName name) {
  const comm::Group group = group_of(task);
  const at::Tensor& part = read(task, 0).tensor;
  std::vector<int64_t> elements;
  for (const int64_t rows : own_rows(task, group).rows) elements.push_back(rows * part.size(1));
  return comm::start_reduce_scatter(tensors_, group, std::move(name), element_of(part),
                                    mutable_bytes_of(part), elements, counted_scratch());
}

void Player::keep_own_share(const Task& task) {
  const comm::Group group = group_of(task);
  const at::Tensor& part = read(task, 0).tensor;
  const OwnRows rows = own_rows(task, group);
  write(task, 0).tensor = part.narrow(0, rows.before, rows.own).clone();
}

std::unique_ptr<comm::Operation> Player::start_all_reduce(const Task& task,
                                                          comm::OperationName name) {
  const schedule::Segment& segment = step_.segment(task);
  const comm::Group group = group_of(task);
  if (segment.kind == SegmentKind::kStatistics)
    return comm::start_all_reduce(transport_, group, std::move(name), comm::Element::kFloat64,
                                  std::as_writable_bytes(std::span(statistics_)));
  if (segment.kind == SegmentKind::kSequenceCounts) {
    at::Tensor& counts = write(task, 0).tensor;
    const SlotValue* before = find(step_.graph.reads(task), SlotKind::kSequenceChoices);
    counts = (before != nullptr ? before->tensor : routing_of(task).sequence_counts).clone();
    return comm::start_all_reduce(tensors_, group, std::move(name), comm::Element::kInt64,
                                  mutable_bytes_of(counts), counted_scratch());
  }
  if (schedule::moves_rows(segment.kind)) {
    at::Tensor& sum = write(task, 0).tensor;
    sum = read(task, 0).tensor.clone();
    return comm::start_all_reduce(tensors_, group, std::move(name), element_of(sum),
                                  mutable_bytes_of(sum), counted_scratch());
  }
  at::Tensor buffer;
  if (segment.kind == SegmentKind::kTiedEmbedding)
    buffer = stage_.tied_embedding_gradient();
  else
    buffer = stage_.gradients(segment.layer, schedule::axis_of(task.kind, segment.kind));
  PIPER_CHECK(buffer.defined() && buffer.is_contiguous(), "nothing to reduce in " + name.what);
  const comm::Element element = element_of(buffer);
  if (strategy_.reduction == strategy::Reduction::kHierarchical)
    return comm::start_hierarchical_all_reduce(tensors_, group, std::move(name), element,
                                               mutable_bytes_of(buffer), topology_of(group),
                                               device_scratch());
  return comm::start_all_reduce(tensors_, group, std::move(name), element, mutable_bytes_of(buffer),
                                device_scratch());
}

// Of gradients: afterwards this rank has the sums of its share (optim/parameter_share.h).
std::unique_ptr<comm::Operation> Player::start_reduce_scatter(const Task& task,
                                                              comm::OperationName name) {
  const schedule::Segment& segment = step_.segment(task);
  const strategy::Axis axis = schedule::axis_of(task.kind, segment.kind);
  hold_gradients(task);  // where nothing was added: zeros
  const at::Tensor buffer = stage_.gradients(segment.layer, axis);
  PIPER_CHECK(buffer.defined() && buffer.is_contiguous(), "nothing to reduce in " + name.what);
  const comm::Group group = group_of(task);
  return comm::start_reduce_scatter(tensors_, group, std::move(name), element_of(buffer),
                                    mutable_bytes_of(buffer), form_of(strategy_.reduction),
                                    topology_of(group), device_scratch());
}

// A slot goes to the next rank of a ring, and its like comes from the rank before. Gradients that
// have come go on with this rank's part.
std::unique_ptr<comm::Operation> Player::start_hop(const Task& task, comm::OperationName name) {
  const comm::Group group = group_of(task);
  SlotValue& source = read(task, 0);
  if (step_.graph.reads(task).size() > 1) source.tensor.add_(read(task, 1).tensor);
  PIPER_CHECK(source.tensor.is_contiguous(), "keys and values in pieces in " + name.what);
  at::Tensor& target = write(task, 0).tensor = at::empty_like(source.tensor);
  auto operation = comm::make_exchange(
      tensors_, group, name.what,
      collective::ring_hop(group.index, std::ssize(group.members), target.nbytes()),
      bytes_of(source.tensor), mutable_bytes_of(target), counted_scratch());
  operation->start(name.key);
  return operation;
}

std::unique_ptr<comm::Operation> Player::start_weights_gather(const Task& task,
                                                              comm::OperationName name) {
  const schedule::Segment& segment = step_.segment(task);
  const strategy::Axis axis = schedule::axis_of(task.kind, segment.kind);
  at::Tensor buffer;
  if (task.kind == TaskKind::kStateCollective) {
    PIPER_CHECK(options_.weight_shares != nullptr, "no shares of divided weights");
    buffer = write(task, 0).tensor = stage_.hold_weights(segment.layer, axis);
    options_.weight_shares->fill({segment.layer, axis}, buffer);
  } else {
    buffer = stage_.weights(segment.layer, axis);
  }
  PIPER_CHECK(buffer.defined() && buffer.is_contiguous(), "nothing to gather in " + name.what);
  const comm::Group group = group_of(task);
  return start_gather(tensors_, group, std::move(name), buffer, strategy_.reduction,
                      topology_of(group));
}

std::unique_ptr<comm::Operation> Player::start_copies(const Task& task, comm::OperationName name) {
  const schedule::Segment& segment = step_.segment(task);
  PIPER_CHECK(options_.placements != nullptr && options_.placements->contains(segment.layer),
              "copies of experts that nobody has placed");
  const balance::ExpertPlacement& placement = options_.placements->at(segment.layer);
  const std::array<int64_t, 2> elements =
      schedule::expert_tensors(model_, strategy_, segment.layer);
  const std::vector<collective::CopiedBlock> blocks = schedule::copied_blocks(placement, elements);
  const collective::CopiedBuffers buffers = schedule::copied_buffers(placement, elements);
  const comm::Group group = group_of(task);
  const bool spreads = segment.kind == SegmentKind::kCopiedWeights;
  if (!spreads) hold_gradients(task);  // of homes without rows in the last micro-batch: zeros
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
      tensors_, group, name.what, write_steps(group.index, buffers, blocks),
      bytes_of(spreads ? homes : copies), mutable_bytes_of(spreads ? copies : homes),
      counted_scratch(), element_of(homes));
  operation->start(name.key);
  return operation;
}

std::unique_ptr<comm::Operation> start_gather(comm::Transport& transport, const comm::Group& group,
                                              comm::OperationName name, const at::Tensor& tensor,
                                              strategy::Reduction form,
                                              const collective::Topology& topology) {
  return comm::start_all_gather(transport, group, std::move(name), element_of(tensor),
                                mutable_bytes_of(tensor), form_of(form), topology);
}

}  // namespace piper::executor
