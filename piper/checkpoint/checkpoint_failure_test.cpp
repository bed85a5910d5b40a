// Saves that fail: nothing is committed, the cause is told, and what was there before stays.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/checkpoint/checkpoint_folder.h>
#include <sys/resource.h>
#include <testing/checkpoint/checkpoint_test_run.h>
#include <tests/test_folder.h>

#include <cerrno>
#include <csignal>

namespace piper::checkpoint {
namespace {

const std::vector<std::string> kOnlyTheOld = {"step-00000001"};

TEST_CASE("a rank that fails or never writes prevents the commit and is named with its cause") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(1);
  save(folder.path(), 1, ranks);
  {
    CheckpointSave save(folder.path(), identity(4), {.step = 2});
    save.write_shard(Rank(0), ranks[0].tensors());
    save.write_shard(Rank(1), {{"flags", at::zeros({2}, at::kBool)}});
    save.report_failure(Rank(3), "no memory");
    try {
      save.commit();
      FAIL("committed");
    } catch (const IoError& error) {
      const std::string what = error.what();
      CHECK(what.find("step-00000002: not saved; earlier checkpoints are untouched; rank 1: tensor "
                      "'flags'") != std::string::npos);
      CHECK(what.ends_with("; rank 2: wrote no shard; rank 3: no memory"));
    }
  }
  CHECK(entries(folder.path()) == kOnlyTheOld);
  { const CheckpointSave abandoned(folder.path(), identity(1), {.step = 3}); }
  CHECK(entries(folder.path()) == kOnlyTheOld);
}

TEST_CASE("a write that fails half-way leaves the old checkpoint and removes its own traces") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(1);
  save(folder.path(), 1, ranks);
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 2000, .rlim_max = old.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string what;
  try {
    save(folder.path(), 2, ranks);
  } catch (const IoError& error) {
    what = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  CHECK(what.find("rank 0: ") != std::string::npos);
  CHECK(what.find("rank-00000.safetensors: cannot be written: File too large") !=
        std::string::npos);
  CHECK(entries(folder.path()) == kOnlyTheOld);
  CHECK(require_newest_complete(folder.path()).manifest.state.step == 1);
}

// At every byte that a save writes the disk may be full: in a shard, in the manifest, in its hash.
TEST_CASE(
    "a disk that fills up anywhere in a save keeps the old checkpoint and says needed and free") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(2);
  save(folder.path(), 1, ranks);
  const auto save_on = [&](int64_t capacity) {
    int64_t left = capacity;
    files::Disk disk = files::real_disk();
    disk.free_bytes = [&left](const std::filesystem::path&) { return left; };
    disk.write = [&left](int fd, const void* bytes, size_t size) -> ssize_t {
      const auto part = std::min<size_t>(size, static_cast<size_t>(left));
      if (part == 0) {
        errno = ENOSPC;
        return -1;
      }
      left -= static_cast<int64_t>(part);
      return ::write(fd, bytes, part);
    };
    CheckpointSave save(folder.path(), identity(2), {.step = 2}, disk);
    for (const RankState& rank : ranks) save.write_shard(Rank(rank.rank), rank.tensors());
    save.commit();
    return capacity - left;
  };
  const int64_t needed = save_on(1 << 20);
  std::filesystem::remove_all(folder.path() / "step-00000002");
  int num_failures = 0;
  for (int64_t capacity = 0; capacity < needed; capacity += 1 + needed / 97, ++num_failures) {
    CAPTURE(capacity);
    try {
      save_on(capacity);
      FAIL("saved on a full disk");
    } catch (const IoError& error) {
      const std::string what = error.what();
      CHECK(what.find("the disk is full: ") != std::string::npos);
      CHECK(what.find(" bytes) are needed, ") != std::string::npos);
      CHECK(what.find(" bytes) are free") != std::string::npos);
    }
    CHECK(entries(folder.path()) == kOnlyTheOld);
  }
  MESSAGE(num_failures << " disks of 0 to " << needed << " bytes");
  CHECK(require_newest_complete(folder.path()).manifest.state.step == 1);
  CHECK(save_on(needed) == needed);
}

TEST_CASE("what does not fit is told before a byte is written") {
  const testing::TestFolder folder;
  files::Disk disk = files::real_disk();
  disk.free_bytes = [](const std::filesystem::path&) { return 999; };
  CheckpointSave save(folder.path(), identity(1), {.step = 2}, disk);
  CHECK_NOTHROW(save.require_space(999));
  CHECK_THROWS_WITH_AS(
      save.require_space(2048),
      (folder.path() / "step-00000002")
          .string()
          .append(": not saved; earlier checkpoints are untouched; ")
          .append(folder.path().string())
          .append(
              ": the disk is full: 2.00 KiB (2048 bytes) are needed, 999 B (999 bytes) are free")
          .c_str(),
      IoError);
  CHECK(entries(folder.path()).empty());
}

}  // namespace
}  // namespace piper::checkpoint
