// Communication tasks: from slots and counts to operations of comm.
#pragma once

#include <piper/executor/executor_context.h>
#include <piper/executor/host_copies.h>
#include <piper/executor/row_exchange.h>
#include <piper/executor/slot_store.h>
#include <piper/strategy/residual_code.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace piper::executor {

// An all-gather of what the members of a group hold a share each of: tensor := all shares, cut as
// reductions cut it (comm::start_all_gather). The tensor is contiguous.
std::unique_ptr<comm::Operation> start_gather(comm::Transport& transport, const comm::Group& group,
                                              comm::OperationName name, const at::Tensor& tensor,
                                              strategy::Reduction algorithm,
                                              const collective::Topology& topology);

// What has changed most in a rank's share of a layer's experts since it was told
// (nn/expert_residuals.h).
at::Tensor own_residuals(const WeightShares& shares, int32_t layer, nn::Stage& stage,
                         const strategy::Strategy& strategy);

// One thread. What it is given outlives it.
class CommunicationTasks {
 public:
  CommunicationTasks(const ExecutorContext& context, const DeviceStreams& streams, SlotStore& slots,
                     StepState& state);

  // Any task but one that computes; end() once the operation has ended.
  std::unique_ptr<comm::Operation> start(const graph::Task& task);
  void end(const graph::Task& task);

 private:
  struct OwnRows {
    std::vector<int64_t> rows;             // by member of the group
    int64_t own = 0, before = 0, all = 0;  // this rank's, those of members before it, of all
  };
  OwnRows own_rows(const graph::Task& task, const comm::Group& group);

  std::unique_ptr<comm::Operation> start_receive(const graph::Task& task, comm::OperationName name);
  std::unique_ptr<comm::Operation> start_all_reduce(const graph::Task& task,
                                                    comm::OperationName name);
  // Where ranks share a layer's or an expert's matrices: the first gathers the rows of all of them,
  // by rank; the second sums their partial results, of which this rank keeps those of its own rows.
  std::unique_ptr<comm::Operation> start_tokens_gather(const graph::Task& task,
                                                       comm::OperationName name);
  std::unique_ptr<comm::Operation> start_tokens_scatter(const graph::Task& task,
                                                        comm::OperationName name);
  void keep_own_share(const graph::Task& task);
  std::unique_ptr<comm::Operation> start_reduce_scatter(const graph::Task& task,
                                                        comm::OperationName name);
  std::unique_ptr<comm::Operation> start_hop(const graph::Task& task, comm::OperationName name);
  std::unique_ptr<comm::Operation> start_weights_gather(const graph::Task& task,
                                                        comm::OperationName name);
  // These are for experts that travel as residuals (strategy/residual_code.h).
  bool sends_residuals(const graph::Task& task) const;
  std::unique_ptr<comm::Operation> start_residuals(const graph::Task& task,
                                                   comm::OperationName name);
  void put_residuals_in(const graph::Task& task);
  // Sends copies of experts their weights from the home ranks, or their gradients back there.
  std::unique_ptr<comm::Operation> start_copies(const graph::Task& task, comm::OperationName name);

  const ExecutorContext& context_;
  const schedule::StepGraph& step_;
  const strategy::Strategy& strategy_;
  nn::Stage& stage_;
  SlotStore& slots_;
  StepState& state_;
  RowExchange rows_;
  HostCopies host_copies_;
};

}  // namespace piper::executor
