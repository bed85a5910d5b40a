// kill -9 at random moments of a save: the newest complete checkpoint must load, every time.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/train/checkpoint.h>
#include <piper/train/test_folder.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRanks = 2;

// Each element of a rank's tensors says which step and rank it belongs to.
std::vector<NamedTensor> filled(int64_t step, int64_t rank) {
  return {{"parameter/a", at::full({256, 64}, static_cast<double>(10 * step + rank), at::kDouble)},
          {"parameter/b", at::full({33}, static_cast<double>(10 * step + rank), at::kDouble)}};
}

void save(const fs::path& folder, int64_t step) {
  CheckpointSave save(
      folder, {.model = "m", .fingerprint = "f", .mesh = {.dp = kRanks}, .layers_per_stage = {1}},
      {.step = step});
  for (int64_t rank = 0; rank < kRanks; ++rank) save.write_shard(Rank(rank), filled(step, rank));
  save.commit();
}

[[noreturn]] void save_for_ever(const fs::path& folder, int64_t step) {
  try {
    for (;; ++step) {
      save(folder, step);
      keep_newest(folder, 2);
    }
  } catch (...) {
    ::_exit(3);
  }
}

TEST_CASE("20 kills of a saving process: the newest complete checkpoint loads 20 of 20 times") {
  at::set_num_threads(1);
  const TestFolder folder;
  const auto seed =
      static_cast<uint32_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  save(folder.path(), 1);
  int64_t last = 1;
  int num_good = 0, num_interrupted = 0, num_steps = 0;
  // Around this delay a few saves are completed: adapted to what this machine does meanwhile.
  uint32_t typical_us = 5'000;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) save_for_ever(folder.path(), last + 1);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (2 * typical_us)));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));

    num_interrupted += sweep_leftovers(folder.path()).empty() ? 0 : 1;
    const Search search = find_newest_complete(folder.path());
    CHECK(search.skipped.empty());
    REQUIRE(search.newest);
    const int64_t step = search.newest->manifest.state.step;
    CHECK(step >= last);
    num_steps += static_cast<int>(step - last);
    if (step == last)
      typical_us *= 2;
    else if (step > last + 3)
      typical_us = typical_us / 2 + 1;
    last = step;
    bool good = true;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const auto expected = filled(step, rank), loaded = filled(0, 0);
      read_shard(*search.newest, Rank(rank), loaded);
      for (size_t i = 0; i < expected.size(); ++i)
        good = good && at::equal(expected[i].value, loaded[i].value);
    }
    num_good += good ? 1 : 0;
  }
  MESSAGE("20 kills: " << num_good << " loads, " << num_interrupted << " saves interrupted, "
                       << num_steps << " completed");
  CHECK(num_good == 20);
  CHECK(num_interrupted > 0);
  CHECK(num_steps > 0);
}

}  // namespace
}  // namespace piper::train
