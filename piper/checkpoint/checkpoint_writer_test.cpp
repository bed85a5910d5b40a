// Saving while training goes on: what is saved, who waits, and how a failure is told.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/checkpoint/checkpoint_reader.h>
#include <piper/checkpoint/checkpoint_writer.h>
#include <testing/checkpoint/checkpoint_test_run.h>
#include <tests/test_folder.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <latch>

namespace piper::checkpoint {
namespace {

// Writes begin when the latch is down.
files::Disk disk_behind(std::latch& gate) {
  files::Disk disk = files::real_disk();
  disk.write = [&gate](int fd, const void* bytes, size_t size) {
    gate.wait();
    return ::write(fd, bytes, size);
  };
  return disk;
}

files::Disk full_disk() {
  files::Disk disk = files::real_disk();
  disk.write = [](int, const void*, size_t) -> ssize_t {
    errno = ENOSPC;
    return -1;
  };
  return disk;
}

void hand_in(CheckpointWriter& writer, int64_t step, const std::vector<RankState>& ranks) {
  for (const RankState& rank : ranks)
    writer.hand_in(Rank(rank.rank), {.step = step, .seed = 5}, rank.tensors());
}

std::string failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const IoError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("what is saved is the state when it was handed in, though training goes on") {
  const testing::TestFolder folder;
  std::vector<RankState> ranks = some_ranks(3);
  const at::Tensor before = ranks[1].parameters[0].value.clone();
  std::latch gate(1);
  CheckpointWriter writer({.folder = folder.path(), .disk = disk_behind(gate)}, identity(3));
  hand_in(writer, 1, ranks);  // returns although nothing can be written yet
  for (RankState& rank : ranks) rank.optimizer.step(0.5);
  CHECK_NOTHROW(writer.check());
  CHECK(writer.take_reports().empty());
  gate.count_down();
  writer.finish();
  RankState restored(1, 99);
  CheckpointReader(require_newest_complete(folder.path())).read(restored.tensors());
  CHECK(at::equal(restored.parameters[0].value, before));
  CHECK_FALSE(at::equal(ranks[1].parameters[0].value, before));
  const std::vector<SaveReport> reports = writer.take_reports();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].step == 1);
  CHECK(reports[0].bytes > 3 * 3 * 4 * (16 * 8 + 8 + 3 * 5 * 7));
}

TEST_CASE("a second save waits for the first, and the newest stay") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(2);
  std::latch gate(1);
  CheckpointWriter writer({.folder = folder.path(), .keep = 2, .disk = disk_behind(gate)},
                          identity(2));
  hand_in(writer, 1, ranks);
  std::atomic<bool> second{false};
  std::thread training([&] {
    hand_in(writer, 2, ranks);
    second = true;
    hand_in(writer, 3, ranks);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK_FALSE(second);
  gate.count_down();
  training.join();
  writer.finish();
  CHECK(entries(folder.path()) == std::vector<std::string>{"step-00000002", "step-00000003"});
  CHECK(require_newest_complete(folder.path()).manifest.state.seed == 5);
}

TEST_CASE("without copies a rank goes on only when the checkpoint is committed") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(4);
  CheckpointWriter writer({.folder = folder.path(), .copies = false}, identity(4));
  std::atomic<int> num_committed{0};
  std::vector<std::thread> threads;
  for (const RankState& rank : ranks)
    threads.emplace_back([&] {
      writer.hand_in(Rank(rank.rank), {.step = 1}, rank.tensors());
      if (inspect_checkpoint(folder.path() / "step-00000001", Depth::kHashes).problems.empty())
        ++num_committed;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(num_committed == 4);
  writer.finish();  // the report comes behind the commit, once older checkpoints were looked at
  const std::vector<SaveReport> reports = writer.take_reports();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].waited_seconds >= reports[0].written_seconds);
}

TEST_CASE("a save that fails in the background is told at every next call; the old one stays") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(2);
  save(folder.path(), 1, ranks);
  for (const bool copies : {true, false}) {
    CAPTURE(copies);
    CheckpointWriter writer({.folder = folder.path(), .copies = copies, .disk = full_disk()},
                            identity(2));
    std::vector<std::string> told(2);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i)
      threads.emplace_back([&, i] {
        told[i] = failure_of([&] {
          writer.hand_in(ranks[i].rank == 0 ? Rank(0) : Rank(1), {.step = 2}, ranks[i].tensors());
        });
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& what : told) CHECK(what.empty() == copies);
    const std::string what = failure_of([&] { writer.finish(); });
    CHECK(what.find("step-00000002: not saved; earlier checkpoints are untouched; rank 0: ") !=
          std::string::npos);
    CHECK(what.find("; rank 1: ") != std::string::npos);
    CHECK(what.find("the disk is full: ") != std::string::npos);
    CHECK(failure_of([&] { writer.check(); }) == what);
    CHECK(failure_of([&] { hand_in(writer, 3, ranks); }) == what);
    CHECK(writer.take_reports().empty());
    CHECK(entries(folder.path()) == std::vector<std::string>{"step-00000001"});
  }
  CHECK(inspect_checkpoint(folder.path() / "step-00000001", Depth::kHashes).problems.empty());
}

TEST_CASE("a disk that cannot flush, or has no room from the start, fails the save") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(1);
  files::Disk broken = files::real_disk();
  broken.sync = [](int) {
    errno = EIO;
    return -1;
  };
  files::Disk small = files::real_disk();
  small.free_bytes = [](const std::filesystem::path&) { return 1000; };
  for (const auto& [disk, expected] : {std::pair(broken, "cannot be flushed: Input/output error"),
                                       std::pair(small, "1000 bytes) are free")}) {
    CheckpointWriter writer({.folder = folder.path(), .disk = disk}, identity(1));
    hand_in(writer, 2, ranks);
    CHECK(failure_of([&] { writer.finish(); }).find(expected) != std::string::npos);
    CHECK(entries(folder.path()).empty());
  }
}

TEST_CASE("a rank that cannot copy its state fails the save, and is named") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(2);
  CheckpointWriter writer({.folder = folder.path()}, identity(2));
  writer.hand_in(Rank(0), {.step = 1}, ranks[0].tensors());
  CHECK_NOTHROW(writer.hand_in(Rank(1), {.step = 1}, {{"gone", at::Tensor()}}));
  const std::string what = failure_of([&] { writer.finish(); });
  CHECK(what.find("rank 1: cannot copy its tensors: ") != std::string::npos);
  CHECK(what.find("rank 0") == std::string::npos);
  CHECK(entries(folder.path()).empty());
}

TEST_CASE("a save that not every rank handed in is dropped; one under way is completed") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(2);
  {
    CheckpointWriter writer({.folder = folder.path()}, identity(2));
    hand_in(writer, 1, ranks);
    writer.hand_in(Rank(0), {.step = 2}, ranks[0].tensors());
  }
  CHECK(entries(folder.path()) == std::vector<std::string>{"step-00000001"});
}

}  // namespace
}  // namespace piper::checkpoint
