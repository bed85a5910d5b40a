#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/train/checkpoint_test_run.h>
#include <piper/train/test_folder.h>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

TEST_CASE(
    "the newest k complete checkpoints are kept, leftovers are swept, other files are left alone") {
  const TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(1);
  for (const int64_t step : {5, 20, 99'999'999, 100'000'000}) save(folder.path(), step, ranks);
  fs::create_directories(folder.path() /
                         "step-00000030");  // never complete: neither kept nor counted nor removed
  folder.write("step-00000040.tmp-1-0/rank-00000.safetensors", "half");
  folder.write("notes.txt", "mine");
  CHECK(find_newest_complete(folder.path()).newest->manifest.state.step == 100'000'000);
  CHECK(leftovers(folder.path()) == std::vector<std::string>{"step-00000040.tmp-1-0"});
  CHECK(sweep_leftovers(folder.path()) == std::vector<std::string>{"step-00000040.tmp-1-0"});
  CHECK(keep_newest(folder.path(), 3) == std::vector<std::string>{"step-00000005"});
  CHECK(keep_newest(folder.path(), 3).empty());
  CHECK(keep_newest(folder.path(), 1) ==
        std::vector<std::string>{"step-99999999", "step-00000020"});
  CHECK(entries(folder.path()) ==
        std::vector<std::string>{"notes.txt", "step-00000030", "step-100000000"});
  CHECK(sweep_leftovers(folder.path() / "absent").empty());
}

TEST_CASE("sizes show what is missing or cut; only hashes show a flipped byte") {
  const TestFolder folder;
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
}  // namespace piper::train
