#include <piper/base/error.h>
#include <piper/executor/row_exchange.h>
#include <piper/executor/tensor_bytes.h>

#include <algorithm>
#include <numeric>

namespace piper::executor {

using graph::Task;
using schedule::SegmentKind;
using schedule::SlotKind;

namespace {

// Returns the index of the segment's chunk, counted from 0; it is 0 without chunks.
int16_t place_of_chunk(const schedule::Segment& segment) {
  return std::max<int16_t>(0, static_cast<int16_t>(segment.chunk - 1));
}

}  // namespace

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

RowExchange::RowExchange(const ExecutorContext& context, SlotStore& slots, StepState& state)
    : context_(context),
      step_(context.step),
      strategy_(context.strategy),
      slots_(slots),
      state_(state) {}

std::unique_ptr<comm::Operation> RowExchange::start_counts(const Task& task,
                                                           comm::OperationName name) {
  if (strategy::deduplicates(strategy_))
    return token_exchange_of(task).start_telling(std::move(name), slots_.routing_of(task),
                                                 row_bytes());
  return step_.segment(task).kind == SegmentKind::kExpertTensor
             ? start_shared_counts(task, std::move(name))
             : start_row_counts(task, std::move(name));
}

std::unique_ptr<comm::Operation> RowExchange::start(const Task& task, comm::OperationName name) {
  return strategy::deduplicates(strategy_) ? start_token_exchange(task, std::move(name))
                                           : start_all_to_all(task, std::move(name));
}

ChunkKey RowExchange::key_of(const Task& task) const {
  const schedule::Segment& segment = step_.segment(task);
  return {segment.layer, task.micro_batch, segment.chunk};
}

int64_t RowExchange::row_bytes() const {
  return static_cast<int64_t>(context_.model.hidden * at::elementSize(context_.dtype));
}

const RowExchange::GroupExchange& RowExchange::exchange_of(const Task& task,
                                                           const comm::Group& group) {
  const auto found = exchanges_.find(task.group);
  if (found != exchanges_.end()) return found->second;
  collective::Topology topology = context_.topology_of(group);
  collective::DispatchCombineCounts told(strategy_.all_to_all, group.index, topology);
  return exchanges_.emplace(task.group, GroupExchange{std::move(topology), std::move(told)})
      .first->second;
}

std::unique_ptr<comm::Operation> RowExchange::start_row_counts(const Task& task,
                                                               comm::OperationName name) {
  const std::vector<nn::Routing*> chunks = slots_.routings_of(task);
  const comm::Group group = context_.group_of(task);
  const auto num_peers = std::ssize(group.members);
  std::vector<std::vector<int64_t>> counts;
  for (nn::Routing* routing : chunks) {
    counts.push_back(sent_counts(*routing));
    routing->received_counts.assign(counts.back().size(), 0);
  }
  const int64_t num_experts = std::ssize(counts[0]) / num_peers;  // of each peer
  const collective::DispatchCombineCounts& told = exchange_of(task, group).told;
  if (told.empty() && chunks.size() == 1 && !strategy::fuses_exchange(strategy_))
    return comm::start_exchange_counts(context_.transport, group, std::move(name), num_experts,
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
  return comm::start_all_to_all(context_.transport, group, std::move(name),
                                std::as_bytes(std::span(messages.sent)), std::move(sent_bytes),
                                std::as_writable_bytes(std::span(messages.received)),
                                std::move(received_bytes));
}

void RowExchange::read_counts(const CountMessages& messages, int16_t chunk,
                              nn::Routing& routing) const {
  const auto num_peers = messages.first_received.size();
  const size_t num_experts = routing.received_counts.size() / num_peers;
  for (size_t p = 0; p < num_peers; ++p)
    std::copy_n(messages.received.begin() + static_cast<std::ptrdiff_t>(messages.place(p, chunk)),
                num_experts,
                routing.received_counts.begin() + static_cast<std::ptrdiff_t>(p * num_experts));
}

// Bytes from one member to another as far as this one knows them: its own row and column, and what
// others told it.
collective::CountOf RowExchange::count_of(const Task& task, const comm::Group& group,
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

std::unique_ptr<comm::Operation> RowExchange::start_all_to_all(const Task& task,
                                                               comm::OperationName name) {
  nn::Routing& routing = slots_.routing_of(task);
  const comm::Group group = context_.group_of(task);
  const graph::SlotId written = step_.graph.writes(task)[0];
  const SlotKind kind = step_.meaning(written).kind;
  // Rows travel towards the experts (dispatch, and the backward of combine) or back from them.
  const bool to_experts = kind == SlotKind::kReceived || kind == SlotKind::kExpertRowsGradient;
  if (kind == SlotKind::kReceived && task.phase == graph::Phase::kForward) {
    const schedule::Segment& segment = step_.segment(task);
    if (const auto told = count_messages_.find({segment.layer, task.micro_batch});
        told != count_messages_.end())
      read_counts(told->second, place_of_chunk(segment), routing);
    state_.received_counts[key_of(task)] = routing.received_counts;
  }
  const std::vector<int64_t> received = to_experts ? routing.received_counts : sent_counts(routing);
  SlotValue& target = slots_.value(written);
  if (strategy::fuses_exchange(strategy_) && to_experts)
    target.sent = repeated(slots_.read(task, 0).tensor, routing);
  const at::Tensor& source = target.sent.defined() ? target.sent : slots_.read(task, 0).tensor;
  target.tensor = context_.empty(
      {std::accumulate(received.begin(), received.end(), int64_t{0}), context_.model.hidden});
  collective::AllToAllOptions how;
  if (strategy_.all_to_all_chunk_bytes > 0) how.chunk = strategy_.all_to_all_chunk_bytes;
  auto operation = comm::make_exchange(
      context_.tensors, group, name.what,
      collective::all_to_all(strategy_.all_to_all, group.index, exchange_of(task, group).topology,
                             count_of(task, group, routing, to_experts, row_bytes()), how),
      bytes_of(source), mutable_bytes_of(target.tensor), context_.counted_scratch());
  operation->start(name.key);
  return operation;
}

std::vector<int64_t> RowExchange::sent_counts(const nn::Routing& routing) const {
  if (!strategy::fuses_exchange(strategy_)) return routing.counts;
  const auto each = std::ssize(routing.counts) / strategy_.mesh.ep;
  std::vector<int64_t> counts;
  for (auto block = routing.counts.begin(); block != routing.counts.end(); block += each)
    for (int64_t i = 0; i < strategy_.mesh.etp; ++i)
      counts.insert(counts.end(), block, block + each);
  return counts;
}

at::Tensor RowExchange::repeated(const at::Tensor& rows, const nn::Routing& routing) const {
  std::vector<at::Tensor> blocks;
  int64_t first = 0;
  for (const int64_t count : bytes_per_peer(routing.counts, strategy_.mesh.ep, 1)) {
    blocks.insert(blocks.end(), static_cast<size_t>(strategy_.mesh.etp),
                  rows.narrow(0, first, count));
    first += count;
  }
  return at::cat(blocks);
}

void RowExchange::end(const Task& task) {
  if (!strategy::fuses_exchange(strategy_)) return;
  SlotValue& target = slots_.value(step_.graph.writes(task)[0]);
  if (target.sent.defined()) {
    target.sent.reset();
    return;
  }
  const std::vector<int64_t> counts =
      bytes_per_peer(slots_.routing_of(task).counts, strategy_.mesh.ep, 1);
  const at::Tensor sum = context_.empty(
      {std::accumulate(counts.begin(), counts.end(), int64_t{0}), context_.model.hidden});
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

TokenExchange& RowExchange::token_exchange_of(const Task& task) {
  std::unique_ptr<TokenExchange>& exchange =
      token_exchanges_[{step_.segment(task).layer, task.micro_batch}];
  if (exchange == nullptr) {
    const comm::Group group = context_.group_of(task);
    exchange = std::make_unique<TokenExchange>(
        context_.transport, context_.tensors, group, context_.topology_of(group),
        strategy_.all_to_all_chunk_bytes, context_.counted_scratch());
  }
  return *exchange;
}

std::unique_ptr<comm::Operation> RowExchange::start_token_exchange(const Task& task,
                                                                   comm::OperationName name) {
  TokenExchange& exchange = token_exchange_of(task);
  nn::Routing& routing = slots_.routing_of(task);
  const at::Tensor& source = slots_.read(task, 0).tensor;
  const graph::SlotId written = step_.graph.writes(task)[0];
  at::Tensor& target = slots_.value(written).tensor;
  const std::pair place{step_.segment(task).layer, task.micro_batch};
  const SlotKind kind = step_.meaning(written).kind;
  if (kind == SlotKind::kReceived) {
    const bool is_new = task.phase == graph::Phase::kForward;
    exchange.hear(routing, is_new);
    if (is_new) state_.distinct_tokens[place] = exchange.distinct();
    return exchange.start_to_experts(std::move(name), source, target, is_new ? &routing : nullptr);
  }
  if (kind == SlotKind::kExpertRowsGradient)
    return exchange.start_to_experts(std::move(name), source, target, nullptr);
  PIPER_CHECK(kind == SlotKind::kReturned || kind == SlotKind::kRowsGradient, name.what);
  at::Tensor* g_weights =
      kind == SlotKind::kRowsGradient ? &slots_.value(step_.graph.writes(task)[1]).tensor : nullptr;
  return exchange.start_back(std::move(name), source, target, routing, g_weights);
}

std::unique_ptr<comm::Operation> RowExchange::start_shared_counts(const Task& task,
                                                                  comm::OperationName name) {
  const std::vector<nn::Routing*> chunks = slots_.routings_of(task);
  const std::pair place{step_.segment(task).layer, task.micro_batch};
  const comm::Group group = context_.group_of(task);
  const auto each = std::ssize(chunks[0]->received_counts), of_rank = each * std::ssize(chunks);
  std::vector<int64_t>& all = shared_messages_[place];
  all.assign(static_cast<size_t>(of_rank * std::ssize(group.members)), 0);
  const auto told = count_messages_.find(place);
  for (int64_t c = 0; c < std::ssize(chunks); ++c) {
    nn::Routing& routing = *chunks[static_cast<size_t>(c)];
    if (told != count_messages_.end()) read_counts(told->second, static_cast<int16_t>(c), routing);
    std::ranges::copy(routing.received_counts, all.begin() + group.index * of_rank + c * each);
  }
  return comm::start_all_gather(context_.transport, group, std::move(name), comm::Element::kInt64,
                                std::as_writable_bytes(std::span(all)),
                                collective::ReductionAlgorithm::kDirect,
                                context_.topology_of(group));
}

void RowExchange::take_shared_counts(const Task& task) {
  nn::Routing& routing = slots_.routing_of(task);
  const schedule::Segment& segment = step_.segment(task);
  const std::vector<int64_t>& all = shared_messages_.at({segment.layer, task.micro_batch});
  const auto each = std::ssize(routing.received_counts),
             of_rank = std::ssize(all) / std::ssize(step_.graph.group(task.group));
  routing.shared_counts.clear();
  for (int64_t at = place_of_chunk(segment) * each; at < std::ssize(all); at += of_rank)
    routing.shared_counts.insert(routing.shared_counts.end(), all.begin() + at,
                                 all.begin() + at + each);
  state_.shared_counts[key_of(task)] = routing.shared_counts;
}

}  // namespace piper::executor
