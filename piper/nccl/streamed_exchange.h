// Runs one member's steps of a collective on device buffers: the programme of
// collective/stream_order.h, put into two streams of the communicator. Sends and receives of a
// round are one NCCL group on the one; copies, additions and moved rows run beside them on the
// other; events tie the two where a step comes after one of the other lane.
//
// The host puts everything in at once and then only looks. It waits within a run only where NCCL
// itself asks for time, as in the first run, which connects the peers. From the second run on
// nothing is allocated. It cannot be captured into a CUDA graph: non-blocking communicators are
// polled by the host between groups.
#pragma once

#include <piper/collective/stream_order.h>
#include <piper/comm/device_operations.h>
#include <piper/comm/step_executor.h>
#include <piper/nccl/communicator.h>
#include <piper/nccl/streams.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace piper::nccl {

// On the communicator's device, as large as the steps say. Steps write output and scratch.
struct DeviceBuffers {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* scratch = nullptr;
};

class StreamedExchange final : public comm::RepeatedOperation {
 public:
  // Members of the steps are those of the communicator. Communicator, buffers and operations
  // outlive the exchange; `operations` may be null where no step adds or moves rows. `caller`: the
  // stream whose work so far a run waits for, and that waits for the run from when it is all
  // put in.
  StreamedExchange(Communicator& communicator, std::string what, collective::MemberSteps steps,
                   const DeviceBuffers& buffers, comm::Unit unit,
                   comm::DeviceOperations* operations, cudaStream_t caller = nullptr);
  // Gives the communicator up when a run is under way.
  ~StreamedExchange() override;
  StreamedExchange(const StreamedExchange&) = delete;
  StreamedExchange& operator=(const StreamedExchange&) = delete;

  void start(uint64_t key) override;
  // True when the device has done it.
  bool advance() override;
  // "'tokens', group 2 of 5, waiting for rank 2 (receive, 4096 bytes); not begun by rank 3": of
  // the first group that is not over, and of the ranks of this process.
  std::string waiting_for() const override;

  int64_t num_groups() const { return collective::num_groups(order_); }
  Communicator& communicator() { return communicator_; }

 private:
  void put_in(const collective::Launch& launch);
  void put_in_group(const collective::Launch& launch);
  void put_in_local(const collective::Step& step, int32_t index);
  void finish_putting_in();
  const std::byte* source(const collective::Block& block) const;
  std::byte* target(const collective::Block& block) const;
  cudaStream_t stream(collective::Lane lane) const;
  std::string describe_group(size_t launch) const;

  Communicator& communicator_;
  const Library& library_;
  std::string what_;
  collective::MemberSteps steps_;
  collective::StreamOrder order_;
  DeviceBuffers buffers_;
  comm::Unit unit_;
  comm::DeviceOperations* operations_;
  cudaStream_t caller_;
  std::vector<std::unique_ptr<comm::DeviceOperations::Rows>> rows_;  // by step
  Event begin_;
  std::vector<Event> over_;  // by launch
  Event messages_end_, local_end_;
  size_t next_ = 0;          // launch to be put in
  bool is_pending_ = false;  // NCCL has not yet put in the group before it
  bool is_running_ = false;
  int64_t num_begun_ = 0;  // of the communicator, with this run
};

// Advances until done; throws CommError after `timeout_seconds` naming rank, operation, group,
// peers and bytes: "rank 1: timed out after 2.0 s in 'tokens', group 2 of 5, waiting for rank 2
// (receive, 4096 bytes); not begun by rank 2". The communicator is given up then, and when a rank
// of the world fails.
void wait(StreamedExchange& exchange, double timeout_seconds);

}  // namespace piper::nccl
