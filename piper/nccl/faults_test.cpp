#include <piper/base/error.h>
#include <piper/collective/algorithms.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "stand_in_world.h"

namespace piper::nccl {
namespace {

using Clock = std::chrono::steady_clock;
using collective::AllToAll;

constexpr int64_t kRanks = 4;
constexpr double kHangTimeout = 0.4, kLongTimeout = 20;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Heard {
  std::string error;
  double seconds = 0;  // since the fault
};

// Every rank executes the exchange again and again; before its third execute the victim does
// `fault`. What each of the others heard.
std::vector<Heard> others_hear(
    AllToAll algorithm, int64_t victim, double timeout_seconds,
    const std::function<void(const std::atomic<int>& num_heard)>& fault) {
  const StandIn stand_in(kStrict);
  comm::LocalWorld world(kRanks);
  std::vector<Heard> heard(kRanks);
  std::atomic<int> num_heard{0};
  std::atomic<Clock::time_point> begin{Clock::now()};
  try {
    run_ranks(stand_in, world, [&](comm::Transport& transport, Communicator& communicator) {
      const int64_t rank = transport.rank().value;
      const auto steps = collective::all_to_all(algorithm, rank, collective::even_nodes(2, 2),
                                                [](int64_t, int64_t) { return 100; });
      std::vector<std::byte> input(400), output(400), scratch(steps.scratch_count + 1);
      StreamedExchange exchange(communicator, "tokens", steps,
                                {input.data(), output.data(), scratch.data()}, {}, nullptr);
      try {
        for (uint64_t round = 0; round < 100; ++round) {
          if (rank == victim && round == 2) {
            begin = Clock::now();
            fault(num_heard);
            return;
          }
          exchange.start(round);
          wait(exchange, timeout_seconds);
        }
      } catch (const CommError& error) {
        heard[rank] = {error.what(), seconds_since(begin)};
        ++num_heard;
        throw;
      }
    });
  } catch (const std::exception&) {  // seen by every rank
  }
  heard.erase(heard.begin() + victim);
  return heard;
}

TEST_CASE("a rank that dies is named by every other one at once") {
  for (const AllToAll algorithm : {AllToAll::kFlat, AllToAll::kPairwise, AllToAll::kHalo})
    for (int64_t victim = 0; victim < kRanks; ++victim)
      for (const Heard& heard :
           others_hear(algorithm, victim, kLongTimeout,
                       [](const std::atomic<int>&) { throw IoError("the thread ends here"); })) {
        CAPTURE(strategy::name(algorithm));
        CHECK(heard.error.find(fmt::format("rank {} failed: the thread ends here", victim)) == 0);
        CHECK(heard.error.find("(in 'tokens', group ") != std::string::npos);
        CHECK(heard.seconds < 2);
      }
}

TEST_CASE("a rank that hangs is named by every other one after the timeout") {
  for (const AllToAll algorithm : {AllToAll::kFlat, AllToAll::kPairwise, AllToAll::kHalo})
    for (int64_t victim = 0; victim < kRanks; ++victim)
      for (const Heard& heard :
           others_hear(algorithm, victim, kHangTimeout, [](const std::atomic<int>& num) {
             while (num < kRanks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
           })) {
        CAPTURE(strategy::name(algorithm));
        CHECK(heard.error.find("timed out after 0.4 s in 'tokens', group ") != std::string::npos);
        CHECK(heard.error.find(fmt::format("not begun by rank {}", victim)) != std::string::npos);
        CHECK(heard.seconds < kHangTimeout + 1);
      }
}

TEST_CASE("what is asked of a communicator that was given up is refused, not waited for") {
  const StandIn stand_in(kStrict);
  comm::LocalWorld world(1);
  std::string said;
  run_ranks(stand_in, world, [&](comm::Transport&, Communicator& communicator) {
    const auto steps = collective::all_to_all(AllToAll::kFlat, 0, collective::apart(1),
                                              [](int64_t, int64_t) { return 8; });
    std::vector<std::byte> input(8), output(8);
    StreamedExchange exchange(communicator, "tokens", steps, {input.data(), output.data(), nullptr},
                              {}, nullptr);
    communicator.abort();
    try {
      exchange.start(1);
    } catch (const CommError& error) {
      said = error.what();
    }
  });
  CHECK(said == "rank 0: 'tokens' is asked of the communicator 'tests', which was given up");
}

TEST_CASE("a rank five times as slow as the others is no alarm") {
  const StandIn stand_in(kStrict);
  comm::LocalWorld world(kRanks);
  std::atomic<int> num_executed{0};
  run_ranks(stand_in, world, [&](comm::Transport& transport, Communicator& communicator) {
    const auto steps =
        collective::all_to_all(AllToAll::kHalo, transport.rank().value,
                               collective::even_nodes(2, 2), [](int64_t, int64_t) { return 100; });
    std::vector<std::byte> input(400), output(400), scratch(steps.scratch_count + 1);
    StreamedExchange exchange(communicator, "tokens", steps,
                              {input.data(), output.data(), scratch.data()}, {}, nullptr);
    for (uint64_t round = 0; round < 5; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(transport.rank().value == 1 ? 50 : 10));
      exchange.start(round);
      wait(exchange, 1);
      ++num_executed;
    }
  });
  CHECK(num_executed == 5 * kRanks);
}

TEST_CASE("a rank that never comes is named by those who wait for the communicator") {
  const StandIn stand_in(kStrict);
  for (int64_t victim = 0; victim < kRanks; ++victim) {
    comm::LocalWorld world(kRanks);
    std::vector<Rank> members;
    for (int64_t r = 0; r < kRanks; ++r) members.emplace_back(r);
    const auto meeting = meet(world, stand_in.library(), "tokens", members);
    std::atomic<int> num_named{0}, num_heard{0};
    comm::run_ranks(world, [&](comm::Transport& transport) {
      const int64_t rank = transport.rank().value;
      if (rank == victim) {
        while (num_heard < kRanks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return;
      }
      try {
        const Communicator late(stand_in.library(), world, meeting, rank,
                                {.device = 0, .connect_timeout_seconds = 0.1});
      } catch (const CommError& error) {
        num_named += error.what() == fmt::format(
                                         "rank {}: the communicator 'tokens' of 4 ranks was "
                                         "not complete after 0.1 s; not there: rank {}",
                                         rank, victim)
                         ? 1
                         : 0;
      }
      ++num_heard;
    });
    CHECK(num_named == kRanks - 1);
  }
}

TEST_CASE("what a library lacks is said: the file, the function, the devices") {
  const auto said = [](const LibraryPaths& paths) -> std::string {
    try {
      const Library library(paths);
      library.num_devices();
      return "";
    } catch (const InvalidInput& error) {
      return error.what();
    }
  };
  const std::string missing = said({"/nowhere/libnccl.so", stand_in_path()});
  CHECK(missing.find("NCCL cannot be opened: /nowhere/libnccl.so") == 0);
  CHECK(missing.find("PIPER_NCCL with its path") != std::string::npos);
  CHECK(said({stand_in_path(), "libc.so.6"}) ==
        "the CUDA runtime has no cudaGetDeviceCount: it is too old or another one");
  const StandIn none(
      {.jitter_us = 0, .polls_in_progress = 0, .one_by_one = true, .num_devices = 0});
  CHECK(said({stand_in_path(), stand_in_path()}) ==
        "there is no CUDA device here: no CUDA-capable device is detected");
}

}  // namespace
}  // namespace piper::nccl
