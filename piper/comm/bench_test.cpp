#include <doctest/doctest.h>
#include <piper/comm/bench.h>
#include <piper/comm/local.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace piper::comm {
namespace {

const BenchOptions kShort{.budget_seconds = 0.02, .batch_seconds = 1e-4, .max_batches = 3};

TEST_CASE("every measurement gives one positive time a size, in order, on odd group sizes") {
  const std::vector<int64_t> sizes{0, 64, 70000};
  for (const int64_t n : {1, 3}) {
    LocalWorld world(n);
    for (auto* measure : {&measure_point_to_point, &measure_all_to_all, &measure_all_reduce,
                          &measure_reduce_scatter, &measure_all_gather}) {
      const auto begin = std::chrono::steady_clock::now();
      const std::vector<Sample> samples = measure(world, sizes, kShort);
      const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
      REQUIRE(samples.size() == 3);
      for (size_t i = 0; i < samples.size(); ++i) {
        CHECK(samples[i].bytes > sizes[i] - n);
        CHECK(samples[i].bytes <= sizes[i]);
        // Each sample that sends something took some time, and all took no longer than the whole
        // call.
        CHECK((samples[i].seconds > 0 || sizes[i] == 0));
        CHECK(samples[i].seconds <= whole.count());
        CHECK(samples[i].seconds * static_cast<double>(samples[i].timing.num_samples) <=
              whole.count());
      }
    }
  }
}

// Memory of its own, of which it knows how much is held; what is started is over 2 ms after it.
class SlowOperands final : public BenchOperands {
 public:
  SlowOperands(Transport& host, std::atomic<int64_t>& held, std::atomic<int64_t>& waits)
      : host_(host), held_(held), waits_(waits) {}
  Transport& transport() override { return host_; }
  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    held_ += static_cast<int64_t>(bytes);
    return {new std::byte[bytes](), [this, bytes](const std::byte* there) {
              held_ -= static_cast<int64_t>(bytes);
              delete[] there;
            }};
  }
  void wait() override {
    ++waits_;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

 private:
  Transport& host_;
  std::atomic<int64_t>&held_, &waits_;
};

TEST_CASE("operands that are elsewhere are made there, and a batch ends when they are through") {
  LocalWorld world(3);
  std::atomic<int64_t> held{0}, waits{0};
  BenchOptions options = kShort;
  options.bytes_between = 1 << 20;  // not for them
  options.operands = [&](Transport& host) {
    return std::make_unique<SlowOperands>(host, held, waits);
  };
  for (auto* measure : {&measure_point_to_point, &measure_all_to_all, &measure_all_reduce,
                        &measure_reduce_scatter, &measure_all_gather}) {
    waits = 0;
    const std::vector<Sample> samples = measure(world, {64, 70000}, options);
    CHECK(samples[0].timing.seconds > 0);
    CHECK(waits >= 2 * 3 * 4);  // sizes, ranks, a warm-up and three batches
    // One operation a batch takes its wait at least.
    CHECK(samples[1].seconds * 1000 >= 2e-3);
    CHECK(held == 0);
  }
}

TEST_CASE("a size carries the interval of its median and what stood out") {
  LocalWorld world(2);
  const BenchOptions options{.budget_seconds = 0.2, .batch_seconds = 1e-4, .max_batches = 30};
  const Sample sample = measure_all_to_all(world, {4096}, options).front();
  CHECK(sample.timing.seconds == sample.seconds);
  CHECK(sample.timing.num_samples >= 3);
  CHECK(sample.timing.num_samples <= 30);
  CHECK(sample.timing.low_seconds <= sample.seconds);
  CHECK(sample.timing.worst_seconds >= sample.timing.high_seconds);
  // Any interval is tight enough: the first one ends it.
  BenchOptions loose = options;
  loose.tight = 1e9;
  loose.budget_seconds = 60;
  CHECK(measure_all_to_all(world, {4096}, loose).front().timing.num_samples == 6);
}

TEST_CASE(
    "an exchange is measured in whole parts: sizes are rounded down to a multiple of the ranks") {
  LocalWorld world(3);
  CHECK(measure_all_to_all(world, {100}, kShort).front().bytes == 99);
}

TEST_CASE("progress rises from above 0 to 1") {
  LocalWorld world(2);
  std::vector<double> parts;
  BenchOptions options = kShort;
  options.progress = [&](double part) { parts.push_back(part); };
  measure_point_to_point(world, {8, 16}, options);
  REQUIRE(parts.size() >= 2);
  CHECK(std::is_sorted(parts.begin(), parts.end()));
  CHECK(parts.back() == doctest::Approx(1));
}

}  // namespace
}  // namespace piper::comm
