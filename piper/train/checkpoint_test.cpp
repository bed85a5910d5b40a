#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/train/checkpoint.h>
#include <piper/train/test_folder.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <thread>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

CheckpointIdentity identity(int64_t world) {
  return {.model = "small",
          .fingerprint = "f",
          .mesh = {.pp = 1, .ep = 1, .dp = world},
          .layers_per_stage = {2}};
}

// One rank's parameters and optimizer, some steps into training.
struct RankState {
  std::vector<nn::Parameter> parameters;
  AdamW optimizer;

  static std::vector<nn::Parameter> make(at::ScalarType dtype) {
    const auto parameter = [&](const char* name, at::IntArrayRef shape) {
      return nn::Parameter{
          .name = name, .value = at::randn(shape, dtype), .gradient = at::randn(shape, dtype)};
    };
    return {parameter("model.embed_tokens.weight", {16, 8}), parameter("model.norm.weight", {8}),
            parameter("experts", {3, 5, 7})};
  }
  explicit RankState(uint64_t seed, at::ScalarType dtype = at::kFloat)
      : parameters((at::manual_seed(seed), make(dtype))), optimizer(parameters, {}) {
    for (int i = 0; i < 3; ++i) optimizer.step(0.01);
  }
  std::vector<NamedTensor> tensors() const { return checkpoint_tensors(parameters, optimizer); }
};

fs::path save(const fs::path& folder, int64_t step, const std::vector<RankState>& ranks) {
  CheckpointSave save(
      folder, identity(static_cast<int64_t>(ranks.size())),
      {.step = step, .seed = 5, .text_fingerprint = "t", .extra = {{"note", "kept"}}});
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back(
        [&, i] { save.write_shard(Rank(static_cast<int64_t>(i)), ranks[i].tensors()); });
  for (std::thread& thread : threads) thread.join();
  return save.commit();
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> damage_of(const fs::path& checkpoint) {
  try {
    verify_checkpoint(checkpoint);
  } catch (const InvalidInput& error) {
    return error.problems();
  }
  return {};
}

void flip(const fs::path& file, int64_t position, int bit) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekg(position);
  const auto byte = static_cast<char>(stream.get() ^ (1 << bit));
  stream.seekp(position);
  stream.put(byte);
}

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
  CHECK(damage_of(found.path).empty());
  RankState restored(2);
  read_shard(found, Rank(0), restored.tensors());
  CHECK(at::equal(restored.parameters[0].value, ranks[0].parameters[0].value));
}

TEST_CASE("single flipped bits anywhere are found, in every file") {
  const TestFolder folder;
  std::vector<RankState> ranks;
  ranks.emplace_back(1);
  ranks.emplace_back(2);
  const fs::path path = save(folder.path(), 9, ranks);
  std::mt19937 random(17);
  int num_flips = 0, num_found = 0;
  for (const std::string& name : entries(path)) {
    const auto size = static_cast<int64_t>(fs::file_size(path / name));
    for (int i = 0; i < 120; ++i, ++num_flips) {
      const int64_t at = i < 20 ? i % size : static_cast<int64_t>(random()) % size;
      const int bit = static_cast<int>(random() % 8);
      flip(path / name, at, bit);
      const auto problems = damage_of(path);
      if (problems.size() == 1 && problems[0].find(name.substr(0, 10)) != std::string::npos)
        ++num_found;
      flip(path / name, at, bit);
    }
  }
  MESSAGE("flipped " << num_flips << " single bits, found " << num_found);
  CHECK(num_found == num_flips);
  CHECK(damage_of(path).empty());
}

TEST_CASE("files that are cut, missing or from another step are all listed") {
  const TestFolder folder;
  std::vector<RankState> ranks;
  for (uint64_t i = 0; i < 3; ++i) ranks.emplace_back(i);
  const fs::path old = save(folder.path(), 8, ranks);
  for (RankState& rank : ranks) rank.optimizer.step(0.1);
  const fs::path path = save(folder.path(), 9, ranks);
  const std::string shard = read_text_file(path / "rank-00000.safetensors");
  for (size_t size = 0; size < shard.size(); size += 1 + shard.size() / 37) {
    std::ofstream(path / "rank-00000.safetensors", std::ios::binary) << shard.substr(0, size);
    CHECK(damage_of(path).size() == 1);
  }
  fs::remove(path / "rank-00001.safetensors");
  fs::copy_file(old / "rank-00002.safetensors", path / "rank-00002.safetensors",
                fs::copy_options::overwrite_existing);
  const auto problems = damage_of(path);
  REQUIRE(problems.size() == 3);
  CHECK(problems[0].find("rank-00000.safetensors is damaged: it holds ") != std::string::npos);
  CHECK(problems[1].ends_with("rank-00001.safetensors is missing"));
  CHECK(problems[2].ends_with(
      "rank-00002.safetensors is damaged: its SHA-256 is not the manifest's"));

  const Search search = find_newest_complete(folder.path());
  CHECK(search.skipped == problems);
  REQUIRE(search.newest);
  CHECK(search.newest->manifest.state.step == 8);
  for (const char* name : {"manifest.json", "manifest.json.sha256"}) {
    const std::string text = read_text_file(old / name);
    for (size_t size = 0; size < text.size(); size += 1 + text.size() / 17) {
      folder.write(fmt::format("step-00000008/{}", name), text.substr(0, size));
      CHECK(damage_of(old).size() == 1);
    }
    fs::remove(old / name);
    CHECK(damage_of(old).size() == 1);
  }
  try {
    require_newest_complete(folder.path());
    FAIL("found one");
  } catch (const InvalidInput& error) {
    CHECK(error.problems().size() == 5);
    CHECK(error.problems().back() ==
          folder.path().string() + ": holds no complete checkpoint to resume from");
  }
  CHECK_THROWS_AS(require_newest_complete(folder.path() / "absent"), InvalidInput);
  fs::rename(path, folder.path() / "step-00000077");
  CHECK_FALSE(damage_of(folder.path() / "step-00000077").empty());
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
