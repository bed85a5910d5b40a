// Executes one member's steps of a collective on plain buffers: the one way in which comm/ executes
// anything.
#pragma once

#include <piper/collective/steps.h>
#include <piper/comm/operations.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace piper::comm {

// What the steps' buffers are, on the host or where the transport's are (Transport::memory).
// `output` is read too (additions, collectives in place); input stays as it is.
struct ExecutionBuffers {
  std::span<const std::byte> input;
  std::span<std::byte> output;
  std::shared_ptr<std::byte> scratch;  // of scratch_count units
};

// What a unit of the steps is.
struct Unit {
  int64_t bytes = 1;
  Element element = Element::kInt64;  // of additions
};

class StepExecutor final : public RepeatedOperation {
 public:
  // Requires buffers as large as the steps say. `transport` outlives the executor. Nothing happens
  // before start().
  StepExecutor(Transport& transport, const Group& group, std::string what,
               collective::MemberSteps steps, ExecutionBuffers buffers, Unit unit);
  // The same, started.
  StepExecutor(Transport& transport, const Group& group, OperationName name,
               collective::MemberSteps steps, ExecutionBuffers buffers, Unit unit);

  void start(uint64_t key) override;

  bool advance() override;
  std::string waiting_for() const override;

 private:
  void begin(int32_t step);
  void move_rows(const collective::Step& step);
  void begin_here(const collective::Step& step);  // one that is no message
  void begin_on_device(const collective::Step& step, DeviceMemory& memory) const;
  void track(int32_t step, std::shared_ptr<Request> request);
  void land(int32_t step);    // of in_flight_: it is done
  void finish(int32_t step);  // makes those ready that waited for it
  void start_ready();
  std::span<const std::byte> source(const collective::Block& block) const;
  std::span<std::byte> target(const collective::Block& block) const;

  Transport& transport_;
  std::vector<Rank> members_;
  OperationName name_;
  std::vector<collective::Step> steps_;
  std::vector<collective::RowPair> row_pairs_;
  int64_t row_count_;  // units of a row
  ExecutionBuffers buffers_;
  Unit unit_;
  std::vector<int32_t> num_before_;               // by step: steps it waits for
  std::vector<int32_t> num_unmet_;                // by step: those of them that are unfinished
  std::vector<std::vector<int32_t>> dependents_;  // by step: steps that wait for it
  std::vector<int32_t> ready_;                    // to be started, in this order
  size_t num_finished_ = 0;                       // all of them: may be started
  std::vector<int32_t> in_flight_;                // steps whose requests are posted and not done
  std::vector<int32_t> position_;                 // by step: in in_flight_
  std::vector<int32_t> completed_;                // what advance() has taken
  Completions completions_;
  std::vector<std::shared_ptr<Request>>
      requests_;  // by step; last: withdrawn before anything else goes
};

}  // namespace piper::comm
