// kill -9 at random moments of saving: the newest complete checkpoint must load, every time. The
// process saves from a copy, as training does, with a change of the state right after.
// PIPER_FULL_COUNTS=1 kills 200 times.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/checkpoint/checkpoint_reader.h>
#include <piper/checkpoint/checkpoint_writer.h>
#include <sys/wait.h>
#include <tests/switches.h>
#include <tests/test_folder.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRanks = 2;

// Each element of a rank's tensors says which step and rank it belongs to.
void fill_for_step(const std::vector<nn::NamedTensor>& tensors, int64_t step, int64_t rank) {
  for (const nn::NamedTensor& tensor : tensors)
    tensor.value.fill_(static_cast<double>(10 * step + rank));
}

std::vector<nn::NamedTensor> tensors_of(int64_t step, int64_t rank) {
  const std::string prefix = "parameter/" + std::to_string(rank);
  std::vector<nn::NamedTensor> tensors = {{prefix + "/a", at::empty({256, 64}, at::kDouble)},
                                          {prefix + "/b", at::empty({33}, at::kDouble)}};
  fill_for_step(tensors, step, rank);
  return tensors;
}

CheckpointIdentity killed_identity() {
  return {.model = "m", .fingerprint = "f", .mesh = {.dp = kRanks}, .layers_per_stage = {1}};
}

void train_and_save(CheckpointWriter& writer, int64_t step) {
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const std::vector<nn::NamedTensor> state = tensors_of(step, rank);
    writer.hand_in(Rank(rank), {.step = step}, state);
    fill_for_step(state, -1, rank);  // training goes on
  }
}

[[noreturn]] void save_for_ever(const fs::path& folder, int64_t step) {
  try {
    CheckpointWriter writer({.folder = folder}, killed_identity());
    for (;; ++step) train_and_save(writer, step);
  } catch (...) {
    ::_exit(3);
  }
}

int64_t num_rounds() { return testing::repetitions({.usual = 50, .full = 200}); }

TEST_CASE("50 kills of a saving process: the newest complete checkpoint loads 50 of 50 times") {
  at::set_num_threads(1);
  const testing::TestFolder folder;
  const auto seed =
      static_cast<uint32_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  {
    CheckpointWriter writer({.folder = folder.path()}, killed_identity());
    train_and_save(writer, 1);
  }
  const int rounds = num_rounds();
  int64_t last = 1;
  int num_good = 0, num_interrupted = 0, num_steps = 0;
  // Around this delay a few saves are completed: adapted to what this machine does meanwhile.
  uint32_t typical_us = 5'000;
  for (int round = 0; round < rounds; ++round) {
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
    CHECK(search.damaged.empty());
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
      const auto expected = tensors_of(step, rank), loaded = tensors_of(0, rank);
      CheckpointReader(*search.newest).read(loaded);
      for (size_t i = 0; i < expected.size(); ++i)
        good = good && at::equal(expected[i].value, loaded[i].value);
    }
    num_good += good ? 1 : 0;
  }
  MESSAGE(rounds << " kills: " << num_good << " loads, " << num_interrupted
                 << " saves interrupted, " << num_steps << " completed");
  CHECK(num_good == rounds);
  CHECK(num_interrupted > 0);
  CHECK(num_steps > 0);
}

}  // namespace
}  // namespace piper::checkpoint
