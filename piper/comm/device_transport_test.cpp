#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/collective/algorithms.h>
#include <piper/comm/device_transport.h>
#include <piper/comm/element.h>
#include <piper/comm/local.h>
#include <piper/comm/operations.h>
#include <testing/comm/groups.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

namespace piper::comm {
namespace {

constexpr double kDeviceTimeout = 20;

// Streams of all ranks, one each, on host memory: nothing runs before run_all() or in_background(),
// which take any stream whose next call may run.
class LateStreams {
 public:
  struct Place final : DeviceMemory::Mark {
    std::shared_ptr<std::atomic<bool>> is_reached = std::make_shared<std::atomic<bool>>(false);
  };

  explicit LateStreams(int64_t num_ranks) : streams_(static_cast<size_t>(num_ranks)) {}

  void put(int64_t rank, std::function<bool()> call) {
    const std::lock_guard lock(mutex_);
    streams_[static_cast<size_t>(rank)].push_back(std::move(call));
  }
  size_t num_waiting() {
    const std::lock_guard lock(mutex_);
    size_t sum = 0;
    for (const auto& stream : streams_) sum += stream.size();
    return sum;
  }
  // False: no stream can go on.
  bool run_all(uint64_t seed) {
    std::mt19937_64 random(seed);
    while (num_waiting() > 0)
      if (!step(random)) return false;
    return true;
  }
  // While the ranks do what `body` says.
  template <class Body>
  void in_background(uint64_t seed, Body body) {
    const std::jthread runner([&](const std::stop_token& stop) {
      std::mt19937_64 random(seed);
      while (!stop.stop_requested())
        if (!step(random)) std::this_thread::yield();
    });
    body();
  }

 private:
  bool step(std::mt19937_64& random) {
    std::vector<size_t> order(streams_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::shuffle(order, random);
    return std::ranges::any_of(order, [&](size_t s) {
      std::unique_lock lock(mutex_);
      if (streams_[s].empty()) return false;
      const std::function<bool()> call = streams_[s].front();
      lock.unlock();
      if (!call()) return false;
      lock.lock();
      streams_[s].pop_front();
      return true;
    });
  }

  std::mutex mutex_;
  std::vector<std::deque<std::function<bool()>>> streams_;  // false: not yet
};

class LateMemory final : public DeviceMemory {
 public:
  LateMemory(LateStreams& streams, int64_t rank) : streams_(streams), rank_(rank) {}

  void add(Element element, std::byte* target, const std::byte* source, int64_t count,
           void* stream) override {
    CHECK(stream == kCurrentStream);
    const auto bytes = static_cast<size_t>(count * size_of(element));
    put([=] { comm::add(element, std::span(target, bytes), std::span(source, bytes)); });
  }
  std::unique_ptr<Rows> prepare_rows(std::span<const collective::RowPair>, bool, Element,
                                     int64_t) override {
    return nullptr;  // no collective here has rows
  }
  std::shared_ptr<const Mark> mark() override {
    auto place = std::make_shared<LateStreams::Place>();
    put([reached = place->is_reached] { *reached = true; });
    return place;
  }
  void wait(const Mark& mark) override {
    // The mark may go before this stream has come to it.
    const auto& place = static_cast<const LateStreams::Place&>(mark);
    streams_.put(rank_, [reached = place.is_reached] { return reached->load(); });
  }
  void copy(std::byte* target, const std::byte* source, size_t bytes) override {
    put([=] { std::memcpy(target, source, bytes); });
  }
  std::shared_ptr<HostBytes> host_bytes(size_t size) override {
    return std::make_shared<Hosted>(size);
  }
  void copy_to_host(HostBytes& target, const std::byte* source) override {
    put([to = static_cast<Hosted&>(target).kept, source] {
      std::memcpy(to->data(), source, to->size());
    });
  }
  void copy_from_host(std::byte* target, HostBytes& source) override {
    put([target, from = static_cast<Hosted&>(source).kept] {
      std::memcpy(target, from->data(), from->size());
    });
  }
  void when_reached(std::shared_ptr<const Mark> mark, Reached call) override {
    // From the thread that runs the streams, some time after.
    wait(*mark);
    put([call = std::move(call), problem = problem_] { call(problem); });
  }
  // What every mark that is reached from now on is told.
  void break_with(std::string problem) { problem_ = std::move(problem); }

 private:
  struct Hosted final : HostBytes {
    explicit Hosted(size_t size)
        : kept(std::make_shared<std::vector<std::byte>>(size, std::byte{0xAB})) {}
    std::span<std::byte> bytes() override { return *kept; }
    std::shared_ptr<std::vector<std::byte>> kept;
  };

  template <class Call>
  void put(Call call) {
    streams_.put(rank_, [call] {
      call();
      return true;
    });
  }
  LateStreams& streams_;
  int64_t rank_;
  std::string problem_;
};

// Every rank's buffers, which outlive the world.
struct Buffers {
  std::vector<int64_t> sum, sent, received;
  std::shared_ptr<std::byte> scratch;
};

}  // namespace

constexpr int64_t kRanks = 4, kCount = 50'000;

// An all-to-all of uneven rows and a sum, as `host`'s rank does them.
void exchange_and_add(Transport& host, DeviceTransport& transport, Buffers& own) {
  const int64_t me = host.rank().value;
  for (int64_t i = 0; i < kCount; ++i) own.sum.push_back(i * (me + 1));
  for (int64_t r = 0; r < kRanks; ++r)
    own.sent.insert(own.sent.end(), static_cast<size_t>(100 * r + 1), 1000 * me + r);
  own.received.resize(static_cast<size_t>(kRanks * (100 * me + 1)));
  const auto scratch = [&](size_t bytes) {
    own.scratch = {new std::byte[bytes], std::default_delete<std::byte[]>()};
    return own.scratch;
  };
  std::vector<int64_t> sent_bytes, received_bytes(kRanks, 8 * (100 * me + 1));
  for (int64_t r = 0; r < kRanks; ++r) sent_bytes.push_back(8 * (100 * r + 1));
  wait(transport,
       *start_all_to_all(transport, everyone(host), {1, "tokens"},
                         std::as_bytes(std::span(own.sent)), sent_bytes,
                         std::as_writable_bytes(std::span(own.received)), received_bytes),
       kDeviceTimeout);
  wait(transport,
       *start_all_reduce(transport, everyone(host), {2, "gradients"}, Element::kInt64,
                         std::as_writable_bytes(std::span(own.sum)), scratch),
       kDeviceTimeout);
  CHECK(transport.bytes_sent()[static_cast<size_t>((me + 1) % kRanks)] >=
        8 * (100 * ((me + 1) % kRanks) + 1) + 8 * kCount / kRanks);
}

void check_exchanged(const std::vector<Buffers>& buffers) {
  for (int64_t r = 0; r < kRanks; ++r) {
    const Buffers& own = buffers[static_cast<size_t>(r)];
    int64_t wrong = 0;
    for (int64_t i = 0; i < kCount; ++i) wrong += own.sum[static_cast<size_t>(i)] == 10 * i ? 0 : 1;
    for (int64_t i = 0; i < std::ssize(own.received); ++i)
      wrong += own.received[static_cast<size_t>(i)] == 1000 * (i / (100 * r + 1)) + r ? 0 : 1;
    CHECK(wrong == 0);
  }
}

TEST_CASE("exchanges and sums among streams that run late are right, and no rank waits for one") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    LateStreams streams(kRanks);
    std::vector<Buffers> buffers(kRanks);
    const auto offers = std::make_shared<DeviceOffers>();
    {
      LocalWorld world(kRanks);
      run_ranks(world, [&](Transport& host) {
        const int64_t me = host.rank().value;
        LateMemory memory(streams, me);
        DeviceTransport transport(host, memory, offers);
        Buffers& own = buffers[static_cast<size_t>(me)];
        exchange_and_add(host, transport, own);
        CHECK(own.sum[1] == me + 1);  // nothing has run
      });
    }
    CHECK(streams.num_waiting() > 100);
    REQUIRE(streams.run_all(seed));
    check_exchanged(buffers);
  }
}

TEST_CASE("between processes bytes go through the hosts, beside what stays in one") {
  for (const int64_t ranks_each : {int64_t{1}, int64_t{2}})
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      CAPTURE(ranks_each);
      LateStreams streams(kRanks);
      std::vector<Buffers> buffers(kRanks);
      std::vector<std::shared_ptr<DeviceOffers>> offers;  // by process
      for (int64_t first = 0; first < kRanks; first += ranks_each) {
        std::vector<Rank> here;
        for (int64_t r = 0; r < ranks_each; ++r) here.emplace_back(first + r);
        offers.push_back(std::make_shared<DeviceOffers>(here));
      }
      LocalWorld world(kRanks);
      streams.in_background(seed, [&] {
        run_ranks(world, [&](Transport& host) {
          const int64_t me = host.rank().value;
          LateMemory memory(streams, me);
          DeviceTransport transport(host, memory, offers[static_cast<size_t>(me / ranks_each)]);
          exchange_and_add(host, transport, buffers[static_cast<size_t>(me)]);
        });
      });
      REQUIRE(streams.run_all(seed));
      check_exchanged(buffers);
    }
}

TEST_CASE("a device that breaks on the way to the host ends the send, and a dropped one is gone") {
  LateStreams streams(2);
  std::vector<std::byte> sent(64), received(64);
  const auto offers = std::make_shared<DeviceOffers>(std::vector{Rank::none()});
  for (const std::string problem : {"an illegal address", "an illegal address, 4 bytes too far"}) {
    LocalWorld world(2);
    CHECK_THROWS_WITH_AS(
        streams.in_background(
            1,
            [&] {
              run_ranks(world, [&](Transport& host) {
                LateMemory memory(streams, host.rank().value);
                memory.break_with(problem);
                DeviceTransport transport(host, memory, offers);
                if (host.rank() == Rank(1))
                  wait(transport, *start_receive(transport, Rank(0), {1, "x"}, received),
                       kDeviceTimeout);
                else
                  wait(transport, *start_send(transport, Rank(1), {1, "x"}, sent), kDeviceTimeout);
              });
            }),
        (problem + " (in 'x', waiting for rank 1 (send, 64 bytes))").c_str(), CommError);
  }
  // Dropped before its stream has come to it: nobody is called.
  LocalWorld other(2);
  Completions completions;
  {
    const std::unique_ptr<Transport> host = other.endpoint(Rank(0));
    LateMemory memory(streams, 0);
    DeviceTransport transport(*host, memory, offers);
    const std::shared_ptr<Request> request = transport.post_send(Rank(1), {1, "x"}, 0, sent);
    CHECK_FALSE(request->done());
    request->tell(completions, 7);
  }
  REQUIRE(streams.run_all(1));
  std::vector<int32_t> told;
  completions.take(told);
  CHECK(told.empty());
}

TEST_CASE("what comes into the sender's stream after a send comes after its copy") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    LateStreams streams(2);
    std::vector<std::byte> sent(64, std::byte{1}), later(64, std::byte{2}), received(64);
    const auto offers = std::make_shared<DeviceOffers>();
    LocalWorld world(2);
    run_ranks(world, [&](Transport& host) {
      LateMemory memory(streams, host.rank().value);
      DeviceTransport transport(host, memory, offers);
      if (host.rank() == Rank(1)) {
        wait(transport, *start_receive(transport, Rank(0), {1, "x"}, received), kDeviceTimeout);
        return;
      }
      wait(transport, *start_send(transport, Rank(1), {1, "x"}, sent), kDeviceTimeout);
      memory.copy(sent.data(), later.data(), sent.size());
    });
    REQUIRE(streams.run_all(seed));
    CHECK(received == std::vector<std::byte>(64, std::byte{1}));
  }
}

TEST_CASE("a send and a receive of other sizes end in an error on both sides") {
  LocalWorld world(2);
  std::atomic<int> num_errors{0};
  LateStreams streams(2);
  const auto offers = std::make_shared<DeviceOffers>();
  CHECK_THROWS_AS(
      run_ranks(
          world,
          [&](Transport& host) {
            LateMemory memory(streams, host.rank().value);
            DeviceTransport transport(host, memory, offers);
            std::vector<std::byte> bytes(host.rank() == Rank(0) ? 8 : 12);
            try {
              if (host.rank() == Rank(0))
                wait(transport, *start_send(transport, Rank(1), {1, "x"}, bytes), kDeviceTimeout);
              else
                wait(transport, *start_receive(transport, Rank(0), {1, "x"}, bytes),
                     kDeviceTimeout);
            } catch (const CommError& error) {
              const std::string said = error.what();
              CHECK(said.find("rank 0 sends 8 bytes, rank 1 receives 12 bytes") !=
                    std::string::npos);
              ++num_errors;
              throw;
            }
          }),
      CommError);
  CHECK(num_errors == 2);
}

}  // namespace piper::comm
