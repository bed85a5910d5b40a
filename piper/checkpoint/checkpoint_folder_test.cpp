#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/checkpoint_folder.h>
#include <sys/fsuid.h>
#include <testing/checkpoint/checkpoint_test_run.h>
#include <tests/test_folder.h>
#include <unistd.h>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

void flip_last_byte(const testing::TestFolder& folder, const std::string& file) {
  std::string bytes = read_text_file(folder.path() / file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder.write(file, bytes);
}

using Names = std::vector<std::string>;

TEST_CASE("the newest k checkpoints are kept, leftovers are swept, other files are left alone") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(1);
  for (const int64_t step : {5, 20, 99'999'999, 100'000'000}) save(folder.path(), step, ranks);
  fs::create_directories(folder.path() / "step-00000030");  // somebody's, with nothing of Piper's
  folder.write("step-00000040.tmp-1-0/rank-00000.safetensors", "half");
  folder.write("notes.txt", "mine");
  CHECK(find_newest_complete(folder.path()).newest->manifest.state.step == 100'000'000);
  CHECK(leftovers(folder.path()) == Names{"step-00000040.tmp-1-0"});
  CHECK(sweep_leftovers(folder.path()) == Names{"step-00000040.tmp-1-0"});
  CHECK(keep_newest(folder.path(), 3).removed == Names{"step-00000005"});
  const Rotation nothing = keep_newest(folder.path(), 3);
  CHECK(nothing.removed.empty());
  CHECK(nothing.read_bytes == 0);  // nothing has to go, so nothing is read
  CHECK(keep_newest(folder.path(), 1).removed == Names{"step-99999999", "step-00000020"});
  CHECK(entries(folder.path()) == Names{"notes.txt", "step-00000030", "step-100000000"});
  CHECK(sweep_leftovers(folder.path() / "absent").empty());
}

// Every file of a checkpoint, hurt in every way that a size does not show.
TEST_CASE("keep N survives N - 1 damaged ones, which are set aside by name and said") {
  for (const int64_t keep : {1, 2, 3})
    for (const char* file : {"rank-00000.safetensors", "rank-00001.safetensors", "manifest.json",
                             "manifest.json.sha256"}) {
      CAPTURE(keep);
      CAPTURE(file);
      const testing::TestFolder folder;
      const std::vector<RankState> ranks = some_ranks(2);
      for (int64_t step = 1; step <= 4; ++step) save(folder.path(), step, ranks);
      // The newest N - 1; where one is kept, the newest, which may not cost the good one.
      const int64_t damaged = std::max<int64_t>(1, keep - 1);
      for (int64_t step = 4; step > 4 - damaged; --step)
        flip_last_byte(folder, checkpoint_name(step) + "/" + file);
      const Rotation done = keep_newest(folder.path(), keep);
      REQUIRE(std::ssize(done.notes) == damaged);
      CHECK(done.notes[0].starts_with("set aside as step-00000004.damaged: " +
                                      folder.path().string()));
      Names expected;
      for (int64_t step = 4 - damaged; step > std::max<int64_t>(0, 4 - damaged - keep); --step)
        expected.insert(expected.begin(), checkpoint_name(step));
      for (int64_t step = 5 - damaged; step <= 4; ++step)
        expected.push_back(checkpoint_name(step) + ".damaged");
      CHECK(entries(folder.path()) == expected);
      CHECK(std::ssize(damaged_names(folder.path())) == damaged);
      CHECK(require_newest_complete(folder.path()).manifest.state.step == 4 - damaged);
      CHECK(keep_newest(folder.path(), keep).removed.empty());
      CHECK(entries(folder.path()) == expected);
    }
}

TEST_CASE("the last verified checkpoint stays, and with none left it is said what was set aside") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(1);
  for (const int64_t step : {1, 2, 3}) {
    save(folder.path(), step, ranks);
    flip_last_byte(folder, checkpoint_name(step) + "/rank-00000.safetensors");
  }
  CHECK(keep_newest(folder.path(), 1).removed.empty());
  CHECK(entries(folder.path()) ==
        Names{"step-00000001.damaged", "step-00000002.damaged", "step-00000003.damaged"});
  try {
    require_newest_complete(folder.path());
    FAIL("found one");
  } catch (const InvalidInput& error) {
    REQUIRE(error.problems().size() == 4);
    CHECK(
        error.problems()[0].ends_with("step-00000001.damaged: was set aside, since it is damaged"));
  }
  // Damaged once more at the same step: both stay.
  for (const int64_t step : {2, 3}) save(folder.path(), step, ranks);
  flip_last_byte(folder, "step-00000003/rank-00000.safetensors");
  CHECK(keep_newest(folder.path(), 1).notes.size() == 1);
  CHECK(damaged_names(folder.path()) == Names{"step-00000001.damaged", "step-00000002.damaged",
                                              "step-00000003.damaged", "step-00000003.damaged-2"});
  CHECK(require_newest_complete(folder.path()).manifest.state.step == 2);
}

// While it lives, files are opened as by somebody who is not root, whom no mode stops.
struct AsSomebody {
  AsSomebody() { ::setfsuid(65534); }
  ~AsSomebody() { ::setfsuid(::geteuid()); }
};

TEST_CASE("what cannot be read now, or another Piper wrote, is no damage: nothing is passed over") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(2);
  for (const int64_t step : {1, 2, 3}) save(folder.path(), step, ranks);
  const fs::path newest = folder.path() / checkpoint_name(3);
  const Names all = entries(folder.path());
  for (const char* name : {"rank-00001.safetensors", "manifest.json", "manifest.json.sha256", ""}) {
    CAPTURE(name);
    fs::permissions(newest / name, fs::perms::none);
    {
      const AsSomebody somebody;
      try {
        find_newest_complete(folder.path());
        FAIL("went back");
      } catch (const IoError& error) {
        CHECK(std::string(error.what()).find("Permission denied") != std::string::npos);
        CHECK(std::string(error.what()).find("is not passed over") != std::string::npos);
      }
      if (*name != '\0') keep_newest(folder.path(), 2);  // counts as none, and stays
    }
    CHECK(entries(folder.path()) == all);
    fs::permissions(newest / name, fs::perms::owner_all);
  }
  const std::string text = read_text_file(newest / "manifest.json");
  for (const char* format :
       {"piper-checkpoint-3", "piper-checkpoint-99999999999999999999", "piper-checkpoint-1"}) {
    CAPTURE(format);
    std::string other = text;
    other.replace(other.find("piper-checkpoint-2"), 18, format);
    folder.write(checkpoint_name(3) + "/manifest.json", other);
    folder.write(checkpoint_name(3) + "/manifest.json.sha256",
                 files::sha256_hex(other) + "  manifest.json\n");
    try {
      find_newest_complete(folder.path());
      FAIL("went back");
    } catch (const OtherVersion& error) {
      const bool is_newer = std::string_view(format) != "piper-checkpoint-1";
      CHECK(std::string(error.what()).find(is_newer ? "a newer Piper" : "an earlier Piper") !=
            std::string::npos);
    }
    keep_newest(folder.path(), 2);
    CHECK(entries(folder.path()) == all);
  }
}

TEST_CASE("removing touches what Piper wrote, and follows no link") {
  const testing::TestFolder folder, elsewhere;
  const std::vector<RankState> ranks = some_ranks(1);
  const fs::path checkpoints = folder.path() / "checkpoints";
  const auto fill = [&] {
    for (const int64_t step : {1, 2, 3}) save(checkpoints, step, ranks);
    save(elsewhere.path(), 4, ranks);
    folder.write("checkpoints/step-00000001/notes.txt", "mine");
    folder.write("checkpoints/notes.txt", "mine");
    folder.write("checkpoints/step-00000009.damaged/rank-00000.safetensors", "x");
    folder.write("checkpoints/step-00000009.tmp-1-0/process-00001.json.tmp1-0", "x");
    folder.write("checkpoints/other/rank-00000.safetensors", "not a checkpoint's");
    if (!fs::exists(checkpoints / "step-00000004"))
      fs::create_directory_symlink(elsewhere.path() / "step-00000004",
                                   checkpoints / "step-00000004");
  };
  fill();
  CHECK(require_newest_complete(checkpoints).manifest.state.step == 4);  // a link may be read
  const Rotation done = keep_newest(checkpoints, 2);
  CHECK(done.removed == Names{"step-00000001"});
  REQUIRE(done.notes.size() == 1);
  CHECK(done.notes[0].ends_with("what others had put into it is in step-00000001.foreign"));
  CHECK(read_text_file(checkpoints / "step-00000001.foreign/notes.txt") == "mine");
  fs::remove_all(checkpoints / "step-00000001.foreign");

  fill();
  const Names notes = remove_checkpoints(checkpoints);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].ends_with("step-00000001: stays, others have put files into it"));
  CHECK(entries(checkpoints) == Names{"notes.txt", "other", "step-00000001", "step-00000004"});
  CHECK(entries(checkpoints / "step-00000001") == Names{"notes.txt"});
  CHECK(inspect_checkpoint(elsewhere.path() / "step-00000004", Depth::kHashes).problems.empty());

  fs::create_directory_symlink(elsewhere.path(), folder.path() / "link");
  CHECK_THROWS_AS(remove_checkpoints(folder.path() / "link"), InvalidInput);
  CHECK(inspect_checkpoint(elsewhere.path() / "step-00000004", Depth::kHashes).problems.empty());
  CHECK(remove_checkpoints(folder.path() / "absent").empty());
}

TEST_CASE("sizes show what is missing or cut; only hashes show a flipped byte") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(2);
  for (const int64_t step : {1, 2, 3}) save(folder.path(), step, ranks);
  fs::remove(folder.path() / "step-00000003/rank-00001.safetensors");
  fs::resize_file(folder.path() / "step-00000003/rank-00000.safetensors", 100);
  const fs::path shard = folder.path() / "step-00000002/rank-00000.safetensors";
  std::string bytes = read_text_file(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder.write("step-00000002/rank-00000.safetensors", bytes);

  const auto problems = [&](Depth depth) {
    std::vector<size_t> counts;
    for (const Inspection& checkpoint : inspect_folder(folder.path(), depth)) {
      CHECK(checkpoint.manifest);
      counts.push_back(checkpoint.problems.size());
    }
    return counts;  // newest first
  };
  CHECK(problems(Depth::kSizes) == std::vector<size_t>{2, 0, 0});
  CHECK(problems(Depth::kHashes) == std::vector<size_t>{2, 1, 0});
  CHECK(inspect_folder(folder.path(), Depth::kHashes)[1].problems[0] ==
        (folder.path() / "step-00000002").string() +
            ": rank-00000.safetensors is damaged: its SHA-256 is not the manifest's");
  CHECK(inspect_folder(folder.path() / "absent", Depth::kSizes).empty());
  CHECK_THROWS_AS(inspect_checkpoint(folder.path() / "absent", Depth::kSizes), InvalidInput);
}

}  // namespace
}  // namespace piper::checkpoint
