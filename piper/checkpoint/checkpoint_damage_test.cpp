#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/checkpoint_folder.h>
#include <piper/files/sha256.h>
#include <sys/stat.h>
#include <testing/checkpoint/checkpoint_test_run.h>
#include <tests/test_folder.h>

#include <chrono>
#include <fstream>
#include <limits>
#include <random>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> damage_of(const fs::path& checkpoint) {
  try {
    return inspect_checkpoint(checkpoint, Depth::kHashes).problems;
  } catch (const InvalidInput& error) {
    return error.problems();
  }
}

void flip(const fs::path& file, int64_t position, int bit) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekg(position);
  const auto byte = static_cast<char>(stream.get() ^ (1 << bit));
  stream.seekp(position);
  stream.put(byte);
}

TEST_CASE("1,000 single flipped bits in shards, and 240 in the manifest and its hash, are found") {
  const testing::TestFolder folder;
  const fs::path path = save(folder.path(), 9, some_ranks(2));
  std::mt19937 random(17);
  int num_flips = 0, num_in_shards = 0, num_found = 0;
  for (const std::string& name : entries(path)) {
    const auto size = static_cast<int64_t>(fs::file_size(path / name));
    const bool is_shard = name.ends_with(".safetensors");
    for (int i = 0; i < (is_shard ? 500 : 120); ++i, ++num_flips) {
      num_in_shards += is_shard ? 1 : 0;
      const int64_t at = i < 20 ? i % size : static_cast<int64_t>(random()) % size;
      const int bit = static_cast<int>(random() % 8);
      flip(path / name, at, bit);
      const auto problems = damage_of(path);
      if (problems.size() == 1 && problems[0].find(name.substr(0, 10)) != std::string::npos)
        ++num_found;
      flip(path / name, at, bit);
    }
  }
  MESSAGE("flipped " << num_flips << " single bits, " << num_in_shards
                     << " of them in shards, found " << num_found);
  CHECK(num_in_shards == 1000);
  CHECK(num_found == num_flips);
  CHECK(damage_of(path).empty());
}

TEST_CASE("files that are cut, missing or from another step are all listed") {
  const testing::TestFolder folder;
  std::vector<RankState> ranks = some_ranks(3);
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
  CHECK(checkpoint::problems(search) == problems);
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

// The manifest that somebody changed, with the hash of what it says now.
void rewrite(const fs::path& checkpoint, const Json& manifest) {
  const std::string text = manifest.dump();
  std::ofstream(checkpoint / "manifest.json") << text;
  std::ofstream(checkpoint / "manifest.json.sha256")
      << files::sha256_hex(text) << "  manifest.json\n";
}

TEST_CASE("a manifest that was tampered with is refused, though its hash is right") {
  const testing::TestFolder folder;
  const fs::path path = save(folder.path(), 9, some_ranks(2));
  const Json whole = Json::parse(read_text_file(path / "manifest.json"));
  struct Row {
    const char* place;
    Json value;
  };
  const Json large = int64_t{1} << 20;
  const Json meshes{{"pp", large}, {"ep", 1}, {"dp", large}, {"tp", large}, {"cp", large}};
  const std::vector<Row> rows{
      {"/state/step", 8},
      {"/state/step", -1},
      {"/state/step", std::numeric_limits<int64_t>::max()},
      {"/state/seed", "18446744073709551616"},
      {"/state/extra", Json()},
      {"/mesh", {{"pp", 2}, {"ep", 1}, {"dp", 2}}},
      {"/mesh", meshes},
      {"/mesh", {{"pp", 0}, {"ep", 1}, {"dp", 2}}},
      {"/layers_per_stage", {-1}},
      {"/files/1/name", "rank-00000.safetensors"},
      {"/files/0/name", "../step-00000008/rank-00000.safetensors"},
      {"/files/0/bytes", -1},
      {"/files/1/sha256", whole["files"][0]["sha256"]},
      {"/files", Json::array()},
      {"/more", 1},
  };
  for (const Row& row : rows) {
    CAPTURE(row.place);
    CAPTURE(row.value.dump());
    Json manifest = whole;
    manifest[Json::json_pointer(row.place)] = row.value;
    rewrite(path, manifest);
    const auto problems = damage_of(path);
    CHECK(std::ssize(problems) == 1);
    for (const std::string& problem : problems) CHECK(problem.find('\n') == std::string::npos);
  }
  rewrite(path, whole);
  CHECK(damage_of(path).empty());
}

TEST_CASE("what stands in place of a checkpoint's file and is none is damage, found at once") {
  const testing::TestFolder folder;
  const fs::path older = save(folder.path(), 8, some_ranks(2));
  const fs::path path = save(folder.path(), 9, some_ranks(2));
  for (const std::string& name : entries(path)) {
    const fs::path file = path / name, kept = folder.path() / "kept";
    fs::rename(file, kept);
    for (const char* kind : {"fifo", "folder", "loop", "device", "empty"}) {
      CAPTURE(name);
      CAPTURE(kind);
      const std::string_view what = kind;
      if (what == "fifo") REQUIRE(::mkfifo(file.c_str(), 0644) == 0);
      if (what == "folder") fs::create_directory(file);
      if (what == "loop") fs::create_symlink(name, file);
      if (what == "device") fs::create_symlink("/dev/zero", file);
      if (what == "empty") std::ofstream{file};
      const auto begin = std::chrono::steady_clock::now();
      CHECK(std::ssize(damage_of(path)) == 1);
      const Search search = find_newest_complete(folder.path());
      REQUIRE(search.newest);
      CHECK(search.newest->path == older);
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
      fs::remove(file);
    }
    fs::rename(kept, file);
  }
  CHECK(damage_of(path).empty());
}

}  // namespace
}  // namespace piper::checkpoint
