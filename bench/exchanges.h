// Times all-to-alls against each other: several algorithms on the same buffers, in turn, so that
// what else the machine does meets all of them. Every algorithm is one RepeatedOperation; what
// arrives is checked byte by byte before the first and after the last batch.
#pragma once

#include <piper/cluster/timing.h>
#include <piper/collective/steps.h>
#include <piper/collective/topology.h>
#include <piper/comm/step_executor.h>
#include <piper/comm/world.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace piper::comm {

struct Exchange {
  std::string name;
  // Steps in bytes: from the pairs' input, member 0's first, to their output, back to back.
  std::function<collective::MemberSteps(int64_t member)> steps;
  // Instead of steps: someone else's exchange of the same bytes.
  std::function<void(std::span<const std::byte> sent, std::span<const int> sent_bytes,
                     std::span<std::byte> received, std::span<const int> received_bytes)>
      native = {};
  // Instead of the pairs' bytes: what a member has, and what must have come in the end.
  struct Data {
    std::vector<std::byte> input, expected;
  };
  std::function<Data(int64_t member)> data = {};
  Unit unit = {};  // of the steps
};

// Where exchanges are executed when it is not on plain buffers over the transport: of one rank,
// whose thread alone calls it. Throws CommError.
class DeviceExchanges {
 public:
  virtual ~DeviceExchanges() = default;
  // The next exchange, numbered from 0: with buffers of its own as large as the steps say.
  virtual void add(const std::string& name, collective::MemberSteps steps, Unit unit) = 0;
  virtual void put(size_t exchange, std::span<const std::byte> input,
                   std::span<const std::byte> output) = 0;
  virtual void execute(size_t exchange, uint64_t key, double timeout_seconds) = 0;
  virtual void fetch(size_t exchange, std::span<std::byte> output) = 0;
};

// A batch repeats one exchange at most so many times. A native exchange, which another library
// executes, needs no keys of ours and may be over in nanoseconds.
inline constexpr int64_t kMaxRepeats = 1000, kMaxNativeRepeats = 100'000;

struct ExchangeBenchOptions {
  // One call of measure_exchanges() may take so long by the slowest rank's wall clock; at least
  // min_rounds rounds are executed all the same. With min_rounds 1, a call that is late before its
  // first batch returns the one exchange that it has timed and does not check the bytes again.
  double budget_seconds = 2;
  double batch_seconds = 2e-3;  // an exchange is repeated until a batch lasts about as long
  int64_t min_rounds = 3, max_rounds = 25;  // batches of every exchange
  int64_t min_repeats = 1;      // exchanges of a batch, one behind the other as ranks get done
  double timeout_seconds = 60;  // of one wait
  // The clocks of all processes are one (one host): ranks then start together, and a batch lasts
  // from the first rank's start to the last one's end. Otherwise as long as the slowest rank's.
  bool one_clock = true;
  // Where they are executed; empty: over the transport. Native exchanges are not, then.
  std::function<std::unique_ptr<DeviceExchanges>(const Transport&)> device = {};
  std::function<void(double)> progress;  // the part done, 0 .. 1, in rank 0's thread; may be empty
};

struct ExchangeResult {
  double seconds = 0;       // of one exchange: the median over batches
  cluster::Timing timing;   // of the batches
  int64_t num_wrong = 0;    // bytes that arrived wrong, of all ranks
  int64_t num_repeats = 1;  // exchanges of a batch
};

// Measures every exchange. The results are in the order of the exchanges and the same in all
// processes, which all call it. count(from, to) are bytes. Throws CommError when a rank fails.
std::vector<ExchangeResult> measure_exchanges(World& world, const std::vector<Exchange>& exchanges,
                                              const collective::CountOf& count,
                                              const ExchangeBenchOptions& options = {});

}  // namespace piper::comm
