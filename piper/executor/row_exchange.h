// The exchange of a mixture layer's rows: what its ranks first tell each other (counts of rows, or
// whole routes where tokens are deduplicated), and the all-to-alls that follow.
#pragma once

#include <piper/collective/dispatch_combine_counts.h>
#include <piper/executor/executor_context.h>
#include <piper/executor/slot_store.h>
#include <piper/executor/token_exchange.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace piper::executor {

// Sums of `counts` over each of `num_peers` equal runs, times bytes_per_row.
std::vector<int64_t> bytes_per_peer(const std::vector<int64_t>& counts, int64_t num_peers,
                                    int64_t bytes_per_row);

// One thread. What it is given outlives it.
class RowExchange {
 public:
  RowExchange(const ExecutorContext& context, SlotStore& slots, StepState& state);

  // Tasks of kind kExchangeCounts.
  std::unique_ptr<comm::Operation> start_counts(const graph::Task& task, comm::OperationName name);
  // Tasks of kind kAllToAll; end() once the operation has ended.
  std::unique_ptr<comm::Operation> start(const graph::Task& task, comm::OperationName name);
  void end(const graph::Task& task);
  // Before a forward's gather among ranks that share experts: the routing's `shared_counts` are
  // what they have told each other, which is kept for a recomputation.
  void take_shared_counts(const graph::Task& task);

 private:
  // What an exchange of a group is written from.
  struct GroupExchange {
    collective::Topology topology;  // of its members
    collective::DispatchCombineCounts told;
  };
  // What the counts of one layer and micro-batch travel in: for every peer and chunk the rows for
  // each of its experts, then what it must be told of others (DispatchCombineCounts).
  struct CountMessages {
    std::vector<int64_t> sent, received;
    std::vector<size_t> first_received, received_a_chunk;  // by peer
    // Where what came from `peer` about this chunk begins.
    size_t place(size_t peer, int16_t chunk) const {
      return first_received[peer] + received_a_chunk[peer] * static_cast<size_t>(chunk);
    }
  };

  ChunkKey key_of(const graph::Task& task) const;
  const GroupExchange& exchange_of(const graph::Task& task, const comm::Group& group);
  TokenExchange& token_exchange_of(const graph::Task& task);
  int64_t row_bytes() const;
  void read_counts(const CountMessages& messages, int16_t chunk, nn::Routing& routing) const;
  collective::CountOf count_of(const graph::Task& task, const comm::Group& group,
                               const nn::Routing& routing, bool to_experts, int64_t row_bytes);
  std::unique_ptr<comm::Operation> start_row_counts(const graph::Task& task,
                                                    comm::OperationName name);
  std::unique_ptr<comm::Operation> start_shared_counts(const graph::Task& task,
                                                       comm::OperationName name);
  std::unique_ptr<comm::Operation> start_all_to_all(const graph::Task& task,
                                                    comm::OperationName name);
  std::unique_ptr<comm::Operation> start_token_exchange(const graph::Task& task,
                                                        comm::OperationName name);
  // For exchanges over ep x etp (strategy::fuses_exchange): the rows for each expert are sent once
  // to each rank that has a part of it, in the order of the group's members; end() adds up the
  // parts that come back in this order.
  std::vector<int64_t> sent_counts(const nn::Routing& routing) const;
  at::Tensor repeated(const at::Tensor& rows, const nn::Routing& routing) const;

  const ExecutorContext& context_;
  const schedule::StepGraph& step_;
  const strategy::Strategy& strategy_;
  SlotStore& slots_;
  StepState& state_;
  std::map<graph::GroupId, GroupExchange> exchanges_;
  // Shared: as they are gathered, by rank, then by chunk.
  std::map<LayerKey, CountMessages> count_messages_;
  std::map<LayerKey, std::vector<int64_t>> shared_messages_;
  std::map<LayerKey, std::unique_ptr<TokenExchange>> token_exchanges_;
};

}  // namespace piper::executor
