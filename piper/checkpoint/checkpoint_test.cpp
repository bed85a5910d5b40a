#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/checkpoint_reader.h>
#include <testing/checkpoint/checkpoint_test_run.h>
#include <tests/test_folder.h>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

TEST_CASE(
    "a saved run is restored bit by bit on every rank: weights, moments, number of steps, "
    "position") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const testing::TestFolder folder;
    std::vector<RankState> ranks;
    for (int64_t i = 0; i < 3; ++i) ranks.emplace_back(i, 7 + i, dtype);
    const fs::path path = save(folder.path() / "deep" / "checkpoints", 120, ranks);
    CHECK(path.filename() == "step-00000120");
    CHECK(entries(path) == std::vector<std::string>{
                               "manifest.json", "manifest.json.sha256", "rank-00000.safetensors",
                               "rank-00001.safetensors", "rank-00002.safetensors"});
    const FoundCheckpoint found = require_newest_complete(path.parent_path());
    CHECK(found.path == path);
    CHECK(found.manifest.state.step == 120);
    CHECK(found.manifest.state.extra.at("note") == "kept");
    CHECK(differences(found.manifest, identity(3), found.path).empty());
    const CheckpointReader reader(found);
    for (size_t i = 0; i < ranks.size(); ++i) {
      RankState restored(ranks[i].rank, 99, dtype);
      restored.optimizer.step(1);
      reader.read(restored.tensors());
      const auto a = ranks[i].tensors(), b = restored.tensors();
      REQUIRE(a.size() == 3 * 3 + (i == 0 ? 1 : 0));
      for (size_t k = 0; k < a.size(); ++k) CHECK(at::equal(a[k].value, b[k].value));
      CHECK(restored.optimizer.num_steps() == (i == 0 ? 3 : 4));  // written by rank 0 alone
    }
  }
}

TEST_CASE("the same state gives the same bytes") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(1);
  const fs::path a = save(folder.path() / "a", 7, ranks), b = save(folder.path() / "b", 7, ranks);
  for (const std::string& name : entries(a))
    CHECK(read_text_file(a / name) == read_text_file(b / name));
}

TEST_CASE("tensors that are missing, or of another shape or type, are all told and none is read") {
  const testing::TestFolder folder;
  const std::vector<RankState> ranks = some_ranks(1);
  const fs::path path = save(folder.path(), 7, ranks);
  const CheckpointReader reader(require_newest_complete(folder.path()));
  std::vector<nn::NamedTensor> wanted = ranks[0].tensors();
  for (nn::NamedTensor& tensor : wanted) tensor.value = tensor.value.clone();
  wanted[0].value = at::zeros({8, 16});
  wanted[1].value = wanted[1].value.to(at::kDouble);
  wanted[2].name = "renamed";
  const at::Tensor untouched = wanted[3].value.zero_();
  try {
    reader.read(wanted);
    FAIL("accepted");
  } catch (const InvalidInput& error) {
    CHECK(error.problems() ==
          std::vector<std::string>{
              path.string() + ": tensor 'first_moment/0.embed_tokens.weight' is F32 [16, 8]; "
                              "allowed: F32 [8, 16]",
              path.string() + ": tensor 'second_moment/0.embed_tokens.weight' is F32 [16, 8]; "
                              "allowed: F64 [16, 8]",
              path.string() + ": tensor 'renamed' is missing"});
  }
  CHECK(untouched.abs().sum().item<float>() == 0);
}

// Another process verified the checkpoint; this one reads it by a path of its own, which may be
// bad.
TEST_CASE("bytes that changed after they were verified are found by whoever reads them") {
  for (const bool is_old : {false, true}) {  // without hashes of tensors
    const testing::TestFolder folder;
    const std::vector<RankState> ranks = some_ranks(2);
    const fs::path path = save(folder.path(), 7, ranks);
    FoundCheckpoint found = require_newest_complete(folder.path());
    if (is_old)
      for (files::FileRecord& file : found.manifest.files) file.tensors.clear();
    const fs::path shard = path / "rank-00001.safetensors";
    const std::string bytes = read_text_file(shard);
    const size_t values = bytes.size() - 3 * 4 * (16 * 8 + 8 + 3 * 5 * 7);
    int num_found = 0, num_flips = 0;
    for (size_t at = values; at < bytes.size(); at += 41, ++num_flips) {
      std::string hurt = bytes;
      hurt[at] = static_cast<char>(hurt[at] ^ 4);
      folder.write("step-00000007/rank-00001.safetensors", hurt);
      const CheckpointReader reader(found);
      RankState other(0, 99), hurt_one(1, 99);
      CHECK_NOTHROW(reader.read(other.tensors(), "rank 0 on a"));
      try {
        reader.read(hurt_one.tensors(), "rank 1 on b");
      } catch (const IoError& error) {
        const std::string what = error.what();
        num_found += what.find(shard.string() + ": rank 1 on b reads other bytes") == 0;
      }
    }
    CHECK(num_flips > 60);
    CHECK(num_found == num_flips);
    folder.write("step-00000007/rank-00001.safetensors", bytes);
    RankState again(1, 99);
    CHECK_NOTHROW(CheckpointReader(found).read(again.tensors()));
  }
}

TEST_CASE("saving a step again puts the new one in the old one's place") {
  const testing::TestFolder folder;
  std::vector<RankState> ranks = some_ranks(1);
  save(folder.path(), 1, ranks);
  ranks[0].parameters[0].value.fill_(4.0);
  const fs::path path = save(folder.path(), 1, ranks);
  CHECK(entries(folder.path()) == std::vector<std::string>{"step-00000001"});
  CHECK(inspect_checkpoint(path, Depth::kHashes).problems.empty());
  RankState restored(0, 2);
  CheckpointReader(require_newest_complete(folder.path())).read(restored.tensors());
  CHECK(at::equal(restored.parameters[0].value, ranks[0].parameters[0].value));
}

}  // namespace
}  // namespace piper::checkpoint
