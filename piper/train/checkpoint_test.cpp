#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/train/checkpoint_test_run.h>
#include <piper/train/test_folder.h>
#include <sys/resource.h>

#include <csignal>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

TEST_CASE(
    "a saved run is restored bit by bit on every rank: weights, moments, number of steps, "
    "position") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const TestFolder folder;
    std::vector<RankState> ranks;
    for (uint64_t i = 0; i < 3; ++i) ranks.emplace_back(i, dtype);
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
    for (size_t i = 0; i < ranks.size(); ++i) {
      RankState restored(99, dtype);
      restored.optimizer.step(1);
      read_shard(found, Rank(static_cast<int64_t>(i)), restored.tensors());
      const auto a = ranks[i].tensors(), b = restored.tensors();
      REQUIRE(a.size() == 3 * 3 + 1);
      for (size_t k = 0; k < a.size(); ++k) CHECK(at::equal(a[k].value, b[k].value));
      CHECK(restored.optimizer.num_steps() == 3);
    }
  }
}

TEST_CASE("the same state gives the same bytes") {
  const TestFolder folder;
  std::vector<RankState> ranks;
  ranks.emplace_back(1);
  const fs::path a = save(folder.path() / "a", 7, ranks), b = save(folder.path() / "b", 7, ranks);
  for (const std::string& name : entries(a))
    CHECK(read_text_file(a / name) == read_text_file(b / name));
}

TEST_CASE("a shard of another shape, type or set of tensors is refused with every tensor") {
  const TestFolder folder;
  std::vector<RankState> ranks;
  ranks.emplace_back(1);
  const FoundCheckpoint found{.path = save(folder.path(), 7, ranks)};
  std::vector<NamedTensor> wanted = ranks[0].tensors();
  for (NamedTensor& tensor : wanted) tensor.value = tensor.value.clone();
  wanted[0].value = at::zeros({8, 16});
  wanted[1].value = wanted[1].value.to(at::kDouble);
  wanted[2].name = "renamed";
  const at::Tensor untouched = wanted[3].value.zero_();
  try {
    read_shard(found, Rank(0), wanted);
    FAIL("accepted");
  } catch (const InvalidInput& error) {
    const std::string file = (found.path / "rank-00000.safetensors").string();
    CHECK(error.problems() ==
          std::vector<std::string>{
              file + ": tensor 'first_moment/model.embed_tokens.weight' is F32 [16, 8]; allowed: "
                     "F32 [8, 16]",
              file + ": tensor 'second_moment/model.embed_tokens.weight' is F32 [16, 8]; allowed: "
                     "F64 [16, 8]",
              file + ": tensor 'renamed' is missing",
              file + ": tensor 'first_moment/model.norm.weight' is superfluous"});
  }
  CHECK(untouched.abs().sum().item<float>() == 0);  // nothing is half loaded
}

TEST_CASE("a rank that fails or never writes prevents the commit and is named with its cause") {
  const TestFolder folder;
  std::vector<RankState> ranks;
  ranks.emplace_back(1);
  save(folder.path(), 1, ranks);
  {
    CheckpointSave save(folder.path(), identity(3), {.step = 2});
    save.write_shard(Rank(0), ranks[0].tensors());
    save.write_shard(Rank(1), {{"flags", at::zeros({2}, at::kBool)}});
    try {
      save.commit();
      FAIL("committed");
    } catch (const IoError& error) {
      const std::string what = error.what();
      CHECK(what.find("step-00000002: not saved; earlier checkpoints are untouched\nrank 1: tensor "
                      "'flags'") != std::string::npos);
      CHECK(what.ends_with("\nrank 2: wrote no shard"));
    }
  }
  CHECK(entries(folder.path()) == std::vector<std::string>{"step-00000001"});
  { const CheckpointSave abandoned(folder.path(), identity(1), {.step = 3}); }
  CHECK(entries(folder.path()) == std::vector<std::string>{"step-00000001"});
}

TEST_CASE("a write that fails half-way leaves the old checkpoint and removes its own traces") {
  const TestFolder folder;
  std::vector<RankState> ranks;
  ranks.emplace_back(1);
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
  CHECK(entries(folder.path()) == std::vector<std::string>{"step-00000001"});
  CHECK(require_newest_complete(folder.path()).manifest.state.step == 1);
}

TEST_CASE("saving a step again puts the new one in the old one's place") {
  const TestFolder folder;
  std::vector<RankState> ranks;
  ranks.emplace_back(1);
  save(folder.path(), 1, ranks);
  ranks[0].parameters[0].value.fill_(4.0);
  const FoundCheckpoint found{.path = save(folder.path(), 1, ranks)};
  CHECK(entries(folder.path()) == std::vector<std::string>{"step-00000001"});
  CHECK_NOTHROW(verify_checkpoint(found.path));
  RankState restored(2);
  read_shard(found, Rank(0), restored.tensors());
  CHECK(at::equal(restored.parameters[0].value, ranks[0].parameters[0].value));
}

TEST_CASE(
    "the newest k complete checkpoints are kept, leftovers are swept, other files are left alone") {
  const TestFolder folder;
  std::vector<RankState> ranks;
  ranks.emplace_back(1);
  for (const int64_t step : {5, 20, 99'999'999, 100'000'000}) save(folder.path(), step, ranks);
  fs::create_directories(folder.path() /
                         "step-00000030");  // never complete: neither kept nor counted nor removed
  folder.write("step-00000040.tmp-1-0/rank-00000.safetensors", "half");
  folder.write("notes.txt", "mine");
  CHECK(find_newest_complete(folder.path()).newest->manifest.state.step == 100'000'000);
  CHECK(sweep_leftovers(folder.path()) == std::vector<std::string>{"step-00000040.tmp-1-0"});
  CHECK(keep_newest(folder.path(), 3) == std::vector<std::string>{"step-00000005"});
  CHECK(keep_newest(folder.path(), 3).empty());
  CHECK(keep_newest(folder.path(), 1) ==
        std::vector<std::string>{"step-99999999", "step-00000020"});
  CHECK(entries(folder.path()) ==
        std::vector<std::string>{"notes.txt", "step-00000030", "step-100000000"});
  CHECK(sweep_leftovers(folder.path() / "absent").empty());
}

}  // namespace
}  // namespace piper::train
