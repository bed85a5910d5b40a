#include <piper/base/error.h>
#include <piper/collective/reductions.h>
#include <piper/comm/bench.h>
#include <piper/comm/operations.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <span>

namespace piper::comm {
namespace {

Group everyone(const Transport& transport) {
  Group group{{}, transport.rank().value};
  for (int64_t r = 0; r < transport.world_size(); ++r) group.members.emplace_back(r);
  return group;
}

// One rank of a measurement.
struct BenchMember {
  Transport& host;
  double timeout_seconds;
  std::unique_ptr<BenchOperands> operands = {};                    // null: the host's
  Transport& transport = operands ? operands->transport() : host;  // of source and target
  Group group = everyone(host);
  uint64_t next_key = uint64_t{0xBE} << 56;
  std::shared_ptr<std::byte> held[2] = {};
  std::span<std::byte> source = {}, target = {};
  std::vector<std::byte> between = {};
  std::unique_ptr<RepeatedOperation> repeated = {};  // of these buffers

  OperationName name(const char* what) { return {next_key++, what}; }
  void finish(Operation& operation) { wait(transport, operation, timeout_seconds); }

  void make_buffers(int64_t bytes) {
    repeated.reset();
    const auto size = static_cast<size_t>(bytes);
    for (int i = 0; i < 2; ++i) {
      held[i] = allocate(size);
      (i == 0 ? source : target) = {held[i].get(), size};
      if (!operands) std::memset(held[i].get(), 1 + i, size);
    }
  }
  std::shared_ptr<std::byte> allocate(size_t bytes) const {
    if (operands) return operands->allocate(bytes);
    return {new std::byte[bytes], std::default_delete<std::byte[]>()};
  }
  // What was started is over where the operands are.
  void wait_for_operands() const {
    if (operands) operands->wait();
  }

  // Everyone's two numbers, member after member. Also a barrier.
  std::vector<int64_t> share(int64_t first, int64_t second) {
    const size_t n = group.members.size();
    std::vector<int64_t> mine, all(2 * n);
    for (size_t i = 0; i < n; ++i) mine.insert(mine.end(), {first, second});
    wait(host, *start_exchange_counts(host, group, name("bench times"), 2, mine, all),
         timeout_seconds);
    return all;
  }
};

using Work = std::function<void(BenchMember&, int64_t bytes)>;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Seconds of one of `repeats` operations, from the first rank's start to the last rank's end: the
// same on all ranks.
double time_batch(BenchMember& member, const Work& work, int64_t bytes, int64_t repeats) {
  member.share(0, 0);
  const int64_t start = now_ns();
  for (int64_t i = 0; i < repeats; ++i) work(member, bytes);
  member.wait_for_operands();
  const std::vector<int64_t> times = member.share(start, now_ns());
  int64_t first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();
  for (size_t i = 0; i < times.size(); i += 2) {
    first = std::min(first, times[i]);
    last = std::max(last, times[i + 1]);
  }
  return static_cast<double>(last - first) * 1e-9 / static_cast<double>(repeats);
}

// Seconds of one operation after work of their own (BenchOptions::bytes_between): the same on all
// ranks. Not above 0 where a rank came so late that others, which did not need it, were done.
double time_apart(BenchMember& member, const Work& work, int64_t bytes) {
  for (std::byte& byte : member.between) byte ^= std::byte{1};
  const int64_t start = now_ns();
  work(member, bytes);
  const std::vector<int64_t> times = member.share(start, now_ns());
  int64_t last = std::numeric_limits<int64_t>::min();
  double ends = 0;
  for (size_t i = 0; i < times.size(); i += 2) {
    last = std::max(last, times[i]);
    ends += static_cast<double>(times[i + 1]) / static_cast<double>(times.size() / 2);
  }
  return (ends - static_cast<double>(last)) * 1e-9;
}

// All ranks decide alike, because they decide by times that they share.
cluster::Timing measure_size(BenchMember& member, const Work& work, int64_t bytes,
                             double budget_seconds, const BenchOptions& options,
                             const std::function<void(double)>& progress) {
  constexpr int64_t kMinBatches = 3, kMaxRepeats = 1000;
  constexpr double kLongBatch = 4;
  member.make_buffers(bytes);
  double used = time_batch(member, work, bytes, 1);  // warms up
  int64_t repeats = std::clamp(static_cast<int64_t>(options.batch_seconds / std::max(used, 1e-9)),
                               int64_t{1}, kMaxRepeats);
  const cluster::SamplingRule rule{.tight = options.tight,
                                   .budget_seconds = budget_seconds,
                                   .min_samples = kMinBatches,
                                   .max_samples = std::max(options.max_batches, kMinBatches)};
  cluster::Sampler sampler(rule);
  const int64_t between = member.operands ? 0 : options.bytes_between;
  member.between.assign(static_cast<size_t>(between), std::byte{0});
  // On a busy machine ranks may come too late for more than half: the others say nothing then.
  int64_t num_late = 0;
  const auto are_late = [&] {
    return num_late > kMinBatches && num_late > std::ssize(sampler.samples());
  };
  while (between > 0 && !sampler.done(used) && !are_late()) {
    const int64_t before = now_ns();
    const double seconds = time_apart(member, work, bytes);
    seconds > 0 ? sampler.add(seconds) : void(++num_late);
    // The first member's clock counts, and share() tells it to all, so that all stop alike.
    used += static_cast<double>(member.share(now_ns() - before, 0).front()) * 1e-9;
    progress(std::clamp(used / budget_seconds, 0.0, 1.0));
  }
  if (are_late()) sampler = cluster::Sampler(rule);
  while (!sampler.done(used)) {
    sampler.add(time_batch(member, work, bytes, repeats));
    const double batch = sampler.samples().back() * static_cast<double>(repeats);
    used += batch;
    // The warm-up was luckier than what follows: shorter batches, or three of them take all day on
    // a busy machine.
    if (batch > kLongBatch * options.batch_seconds)
      repeats = std::max<int64_t>(
          1, static_cast<int64_t>(static_cast<double>(repeats) * options.batch_seconds / batch));
    progress(std::clamp(used / budget_seconds, 0.0, 1.0));
  }
  return cluster::summarise(sampler.samples());
}

std::vector<Sample> measure(World& world, const std::vector<int64_t>& sizes,
                            const BenchOptions& options, const Work& work) {
  std::vector<Sample> samples;
  const auto num_sizes = static_cast<double>(sizes.size());
  run_ranks(world, [&](Transport& transport) {
    BenchMember member{transport, options.timeout_seconds,
                       options.operands ? options.operands(transport) : nullptr};
    const bool reports = transport.rank().value == 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto progress = [&](double part) {
        if (reports && options.progress)
          options.progress((static_cast<double>(i) + part) / num_sizes);
      };
      const cluster::Timing timing = measure_size(
          member, work, sizes[i], options.budget_seconds / num_sizes, options, progress);
      progress(1);
      if (reports) samples.push_back({sizes[i], timing.seconds, timing});
    }
  });
  return samples;
}

void pass_on(BenchMember& member, int64_t) {
  const int64_t n = member.transport.world_size(), rank = member.transport.rank().value;
  const OperationName name = member.name("bench message");
  // At once: on a device a send is over when its receiver has looked.
  member.finish(
      *join(start_receive(member.transport, Rank((rank + n - 1) % n), name, member.target),
            start_send(member.transport, Rank((rank + 1) % n), name, member.source)));
}

void exchange(BenchMember& member, int64_t bytes) {
  const auto n = static_cast<int64_t>(member.group.members.size());
  const std::vector<int64_t> each(n, bytes / n);
  member.finish(*start_all_to_all(member.transport, member.group, member.name("bench all-to-all"),
                                  member.source, each, member.target, each));
}

void reduce(BenchMember& member, int64_t) {
  member.finish(*start_all_reduce(member.transport, member.group, member.name("bench all-reduce"),
                                  Element::kFloat32, member.target,
                                  [&](size_t bytes) { return member.allocate(bytes); }));
}

using Half = collective::MemberSteps(collective::ReductionAlgorithm, int64_t,
                                     const collective::Topology&, int64_t);

// In place in the target, whose steps are written once.
void execute_half(BenchMember& member, int64_t bytes, const char* what, Half* half) {
  if (!member.repeated) {
    const collective::Topology all = collective::apart(std::ssize(member.group.members));
    member.repeated = make_exchange(
        member.transport, member.group, what,
        half(collective::ReductionAlgorithm::kDirect, member.group.index, all, bytes / 4), {},
        member.target, [&member](size_t scratch) { return member.allocate(scratch); },
        Element::kFloat32);
  }
  member.repeated->start(member.next_key++);
  member.finish(*member.repeated);
}

void scatter(BenchMember& member, int64_t bytes) {
  execute_half(member, bytes, "bench reduce-scatter", &collective::reduce_scatter);
}

void gather(BenchMember& member, int64_t bytes) {
  execute_half(member, bytes, "bench all-gather", &collective::all_gather);
}

std::vector<int64_t> whole_elements(std::vector<int64_t> sizes) {
  for (int64_t& bytes : sizes) bytes -= bytes % 4;
  return sizes;
}

}  // namespace

std::vector<Sample> measure_point_to_point(World& world, const std::vector<int64_t>& sizes,
                                           const BenchOptions& options) {
  return measure(world, sizes, options, pass_on);
}

std::vector<Sample> measure_all_to_all(World& world, const std::vector<int64_t>& sizes,
                                       const BenchOptions& options) {
  std::vector<int64_t> whole = sizes;
  for (int64_t& bytes : whole) bytes -= bytes % world.size();
  return measure(world, whole, options, exchange);
}

std::vector<Sample> measure_all_reduce(World& world, const std::vector<int64_t>& sizes,
                                       const BenchOptions& options) {
  return measure(world, whole_elements(sizes), options, reduce);
}

std::vector<Sample> measure_reduce_scatter(World& world, const std::vector<int64_t>& sizes,
                                           const BenchOptions& options) {
  return measure(world, whole_elements(sizes), options, scatter);
}

std::vector<Sample> measure_all_gather(World& world, const std::vector<int64_t>& sizes,
                                       const BenchOptions& options) {
  return measure(world, whole_elements(sizes), options, gather);
}

}  // namespace piper::comm
