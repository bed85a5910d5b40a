#include <bench/exchanges.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/comm/operations.h>
#include <piper/comm/step_executor.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

namespace piper::comm {
namespace {

using Clock = std::chrono::steady_clock;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

// The byte that `from` has for `to` at `index` of its part.
std::byte numbered(int64_t from, int64_t to, int64_t index) {
  const uint64_t mixed = (static_cast<uint64_t>(index) + 1) * 0x9E3779B97F4A7C15u +
                         static_cast<uint64_t>(from) * 0xC2B2AE3D27D4EB4Fu +
                         static_cast<uint64_t>(to) * 0x165667B19E3779F9u;
  return static_cast<std::byte>(mixed >> 56);
}

constexpr double kLongestStart = 0.05;  // seconds, of the ranks of one exchange

struct Pair {
  int64_t first = 0, second = 0;
};

// One rank of a measurement.
class Member {
 public:
  Member(World& world, Transport& transport, const std::vector<Exchange>& exchanges,
         const collective::CountOf& count, const ExchangeBenchOptions& options)
      : world_(world),
        transport_(transport),
        exchanges_(exchanges),
        count_(count),
        options_(options) {
    const int64_t begin = now_ns();
    group_.index = transport.rank().value;
    for (int64_t r = 0; r < transport.world_size(); ++r) group_.members.emplace_back(r);
    fill_input();
    own_.resize(exchanges.size());
    if (options.device) device_ = options.device(transport);
    for (size_t e = 0; e < exchanges.size(); ++e) {
      noted_.push_back(fmt::format("{}, {} a pair", exchanges[e].name,
                                   format_bytes(static_cast<double>(largest_pair()))));
      operations_.push_back(make(e));
    }
    for (const Pair& one : share({begin, 0})) begins_.push_back(one.first);
  }

  size_t num_exchanges() const { return operations_.size(); }
  bool is_native(size_t exchange) const { return exchanges_[exchange].native != nullptr; }

  // Executes the exchange once and counts the bytes that are wrong here.
  int64_t check(size_t exchange) {
    note(exchange);
    int64_t num_wrong = 0;
    if (exchanges_[exchange].data) {
      Own& own = own_[exchange];
      std::ranges::transform(own.data.expected, own.output.begin(), std::bit_not<std::byte>());
      execute_anew(exchange, own.data.input, own.output);
      for (size_t i = 0; i < own.output.size(); ++i)
        num_wrong += own.output[i] == own.data.expected[i] ? 0 : 1;
      return num_wrong;
    }
    for_output([](std::byte right, std::byte& byte) { byte = ~right; });
    execute_anew(exchange, input_, output_);
    for_output([&](std::byte right, std::byte& byte) { num_wrong += byte == right ? 0 : 1; });
    return num_wrong;
  }

  // Seconds of one of `repeats` exchanges, the same on all ranks.
  double time(size_t exchange, int64_t repeats) {
    note(exchange);
    start_together();
    const int64_t begin = now_ns();
    for (int64_t i = 0; i < repeats; ++i) execute(exchange);
    const std::vector<Pair> times = share({begin, now_ns()});
    int64_t first = std::numeric_limits<int64_t>::max(), last = 0, longest = 0;
    for (size_t r = 0; r < times.size(); ++r) {
      first = std::min(first, times[r].first);
      last = std::max(last, times[r].second);
      longest = std::max(longest, times[r].second - times[r].first);
      elapsed_ns_ = std::max(elapsed_ns_, times[r].second - begins_[r]);
    }
    return static_cast<double>(options_.one_clock ? last - first : longest) * 1e-9 /
           static_cast<double>(repeats);
  }

  // Returns the wall-clock seconds until the slowest rank ended what was timed last; all ranks
  // agree.
  double elapsed_seconds() const { return static_cast<double>(elapsed_ns_) * 1e-9; }

  // Everyone's two numbers. Also a barrier: along a binomial tree to rank 0 and back. Ranks that
  // are done early say so while others still exchange: one message each, and of ranks that lie
  // together most of them inside the node. (All to all, the ranks of 8 nodes kept each other's
  // NICs busy: a leader's exchange of 64 B took 51 ms instead of 45.)
  std::vector<Pair> share(Pair mine) {
    const auto n = std::ssize(group_.members);
    std::vector<Pair> all(static_cast<size_t>(n));
    const int64_t me = group_.index;
    all[static_cast<size_t>(me)] = mine;
    const uint64_t up = next_key_++, down = next_key_++;
    const auto of = [&](int64_t begin, int64_t end) {
      return std::as_writable_bytes(std::span(all).subspan(begin, std::min(end, n) - begin));
    };
    const auto done = [&](const std::unique_ptr<Operation>& operation) {
      wait(transport_, *operation, options_.timeout_seconds);
    };
    int64_t bit = 1;  // this rank speaks for the `bit` ranks from itself on
    for (; bit < n && (me & bit) == 0; bit *= 2)
      if (me + bit < n)
        done(start_receive(transport_, Rank(me + bit), {up, "bench times"},
                           of(me + bit, me + 2 * bit)));
    if (me > 0) {
      done(start_send(transport_, Rank(me - bit), {up, "bench times"}, of(me, me + bit)));
      done(start_receive(transport_, Rank(me - bit), {down, "bench times"}, of(0, n)));
    }
    for (bit /= 2; bit > 0; bit /= 2)
      if (me + bit < n)
        done(start_send(transport_, Rank(me + bit), {down, "bench times"}, of(0, n)));
    return all;
  }

  int64_t sum(int64_t mine) {
    int64_t total = 0;
    for (const Pair& one : share({mine, 0})) total += one.first;
    return total;
  }

 private:
  // For whoever asks where a rank died or hangs: once a batch, not once an exchange.
  void note(size_t exchange) { world_.note(transport_.rank(), -1, noted_[exchange]); }

  struct Own {
    Exchange::Data data;
    std::vector<std::byte> output;
  };

  std::unique_ptr<RepeatedOperation> make(size_t e) {
    const Exchange& exchange = exchanges_[e];
    PIPER_CHECK(!exchange.native || device_ == nullptr, exchange.name);
    if (exchange.native) return nullptr;
    collective::MemberSteps steps = exchange.steps(group_.index);
    if (device_ != nullptr) {
      if (exchange.data) own_[e].data = exchange.data(group_.index);
      own_[e].output.resize(own_[e].data.expected.size());
      device_->add(exchange.name, std::move(steps), exchange.data ? exchange.unit : Unit{});
      return nullptr;
    }
    if (!exchange.data)
      return make_exchange(transport_, group_, exchange.name, std::move(steps), input_, output_);
    Own& own = own_[e];
    own.data = exchange.data(group_.index);
    own.output.resize(own.data.expected.size());
    ExecutionBuffers buffers{
        own.data.input, own.output,
        std::shared_ptr<std::byte>(
            new std::byte[static_cast<size_t>(steps.scratch_count * exchange.unit.bytes)],
            std::default_delete<std::byte[]>())};
    return std::make_unique<StepExecutor>(transport_, group_, exchange.name, std::move(steps),
                                          std::move(buffers), exchange.unit);
  }

  // Returns the bytes of this rank's largest message; under even loads all have the same size.
  int64_t largest_pair() const {
    return std::max(std::ranges::max(sent_bytes_), std::ranges::max(received_bytes_));
  }

  void fill_input() {
    const auto n = static_cast<int64_t>(group_.members.size());
    int64_t bytes = 0;
    for (int64_t other = 0; other < n; ++other) {
      bytes += count_(other, group_.index);
      sent_bytes_.push_back(static_cast<int>(count_(group_.index, other)));
      received_bytes_.push_back(static_cast<int>(count_(other, group_.index)));
    }
    output_.resize(bytes);
    for (int64_t to = 0; to < n; ++to)
      for (int64_t i = 0; i < count_(group_.index, to); ++i)
        input_.push_back(numbered(group_.index, to, i));
  }

  template <class Visit>
  void for_output(const Visit& visit) {
    size_t at = 0;
    for (size_t from = 0; from < group_.members.size(); ++from) {
      const int64_t bytes = count_(static_cast<int64_t>(from), group_.index);
      for (int64_t i = 0; i < bytes; ++i)
        visit(numbered(static_cast<int64_t>(from), group_.index, i), output_[at++]);
    }
  }

  // From these bytes to these, wherever it is executed.
  void execute_anew(size_t exchange, std::span<const std::byte> input,
                    std::span<std::byte> output) {
    if (device_ != nullptr) device_->put(exchange, input, output);
    execute(exchange);
    if (device_ != nullptr) device_->fetch(exchange, output);
  }

  void execute(size_t exchange) {
    if (device_ != nullptr)
      return device_->execute(exchange, next_key_++, options_.timeout_seconds);
    if (operations_[exchange] == nullptr)
      return exchanges_[exchange].native(input_, sent_bytes_, output_, received_bytes_);
    operations_[exchange]->start(next_key_++);
    wait(transport_, *operations_[exchange], options_.timeout_seconds);
  }

  // With one clock everyone sleeps until a time that lies safely after the barrier's end.
  void start_together() {
    const int64_t begin = now_ns();
    share({});
    if (!options_.one_clock || transport_.world_size() == 1) return;
    const std::vector<Pair> times = share({begin, now_ns()});
    int64_t first = begin, last = 0;
    for (const Pair& time : times) {
      first = std::min(first, time.first);
      last = std::max(last, time.second);
    }
    std::this_thread::sleep_until(Clock::time_point(std::chrono::nanoseconds(2 * last - first)));
  }

  World& world_;
  Transport& transport_;
  const std::vector<Exchange>& exchanges_;
  const collective::CountOf& count_;
  const ExchangeBenchOptions& options_;
  Group group_;
  uint64_t next_key_ = uint64_t{0xEB} << 56;
  std::vector<int64_t> begins_;  // by rank, each by its own clock
  int64_t elapsed_ns_ = 0;
  std::vector<std::byte> input_, output_;
  std::vector<std::string> noted_;                              // by exchange
  std::vector<Own> own_;                                        // by exchange
  std::vector<int> sent_bytes_, received_bytes_;                // by rank; for native exchanges
  std::vector<std::unique_ptr<RepeatedOperation>> operations_;  // null: native, or on the device
  std::unique_ptr<DeviceExchanges> device_;
};

// How many exchanges make a batch, when one alone took `once`. That may be mostly what the ranks
// need to start: threads wake up a hundred times later than a copy of 1 KB takes. So more of them
// are timed until the number is the one that they ask for.
int64_t repeats_of_batch(Member& member, size_t e, bool is_native, double once,
                         const ExchangeBenchOptions& options) {
  const auto wanted = [&](double seconds) {
    return std::clamp(static_cast<int64_t>(options.batch_seconds / std::max(seconds, 1e-9)),
                      options.min_repeats, is_native ? kMaxNativeRepeats : kMaxRepeats);
  };
  int64_t repeats = wanted(once);
  if (once > kLongestStart) return repeats;
  while (member.elapsed_seconds() < options.budget_seconds) {
    const int64_t next = wanted(member.time(e, repeats));
    if (next <= 2 * repeats) break;
    repeats = next;
  }
  return repeats;
}

// All ranks decide alike, because they decide by times that they share.
std::vector<ExchangeResult> measure(Member& member, const ExchangeBenchOptions& options,
                                    const std::function<void(double)>& progress) {
  const size_t n = member.num_exchanges();
  std::vector<ExchangeResult> results(n);
  std::vector<std::vector<double>> samples(n);
  std::vector<double> once;
  for (size_t e = 0; e < n; ++e) {
    results[e].num_wrong = member.sum(member.check(e));
    once.push_back(member.time(e, 1));
    results[e].num_repeats = repeats_of_batch(member, e, member.is_native(e), once[e], options);
  }
  const auto late = [&] { return member.elapsed_seconds() >= options.budget_seconds; };
  if (late() && options.min_rounds <= 1) {
    for (size_t e = 0; e < n; ++e) {
      samples[e] = {once[e]};
      results[e].num_repeats = 1;
    }
  } else {
    for (int64_t round = 0; round < options.max_rounds; ++round) {
      for (size_t e = 0; e < n && (round < options.min_rounds || !late()); ++e)
        samples[e].push_back(member.time(e, results[e].num_repeats));
      if (round + 1 >= options.min_rounds && late()) break;
      progress(std::max(member.elapsed_seconds() / options.budget_seconds,
                        static_cast<double>(round + 1) / static_cast<double>(options.max_rounds)));
    }
    for (size_t e = 0; e < n; ++e) results[e].num_wrong += member.sum(member.check(e));
  }
  for (size_t e = 0; e < n; ++e) {
    results[e].timing = cluster::summarise(samples[e]);
    results[e].seconds = results[e].timing.seconds;
  }
  return results;
}

}  // namespace

std::vector<ExchangeResult> measure_exchanges(World& world, const std::vector<Exchange>& exchanges,
                                              const collective::CountOf& count,
                                              const ExchangeBenchOptions& options) {
  std::vector<ExchangeResult> results;
  const Rank reporter = world.local_ranks().front();
  run_ranks(world, [&](Transport& transport) {
    Member member(world, transport, exchanges, count, options);
    const bool reports = transport.rank() == reporter;
    std::vector<ExchangeResult> mine = measure(member, options, [&](double part) {
      if (reports && options.progress) options.progress(std::min(part, 1.0));
    });
    if (reports) results = std::move(mine);
  });
  return results;
}

}  // namespace piper::comm
