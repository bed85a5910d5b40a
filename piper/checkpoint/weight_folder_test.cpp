#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/checkpoint/weight_folder.h>
#include <tests/test_folder.h>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string index_of(const std::string& weight_map) {
  return "{\"metadata\": {\"total_size\": 8}, \"weight_map\": {" + weight_map + "}}";
}

std::vector<std::string> problems_of_folder(const fs::path& folder) {
  try {
    const WeightFolder opened(folder);
  } catch (const InvalidInput& error) {
    return error.problems();
  }
  return {};
}

TEST_CASE("one file or shards with an index hold the same tensors") {
  const testing::TestFolder folder;
  fs::create_directories(folder.path() / "single");
  write_safetensors(folder.path() / "single/model.safetensors",
                    {{"a", at::ones({2})}, {"b", at::zeros({3})}});
  write_safetensors(folder.path() / "model-1.safetensors", {{"a", at::ones({2})}});
  write_safetensors(folder.path() / "model-2.safetensors", {{"b", at::zeros({3})}});
  folder.write("model.safetensors.index.json",
               index_of(R"("a": "model-1.safetensors", "b": "model-2.safetensors")"));
  for (const fs::path& path : {folder.path() / "single", folder.path()}) {
    const WeightFolder weights(path);
    CHECK(weights.tensors().size() == 2);
    at::Tensor a = at::zeros({2});
    weights.read("a", a);
    CHECK(at::equal(a, at::ones({2})));
    CHECK(weights.find("c") == nullptr);
  }
}

TEST_CASE("a shard outside the folder is refused: by dots, absolute, by a link") {
  const testing::TestFolder folder;
  write_safetensors(folder.path() / "outside.safetensors", {{"a", at::ones({2})}});
  const fs::path outside = folder.path() / "outside.safetensors";
  fs::create_directories(folder.path() / "m/sub");
  fs::create_symlink("../outside.safetensors", folder.path() / "m/link.safetensors");
  for (const std::string& name :
       {std::string("../outside.safetensors"), outside.string(), std::string("link.safetensors"),
        std::string("sub/../../outside.safetensors"), std::string(".."), std::string(""),
        std::string("..\\\\outside.safetensors"), std::string("a\\u0000.safetensors")}) {
    CAPTURE(name);
    folder.write("m/model.safetensors.index.json", index_of("\"a\": \"" + name + "\""));
    const auto problems = problems_of_folder(folder.path() / "m");
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].find("'weight_map.a' is ") != std::string::npos);
  }
  folder.write("m/model.safetensors.index.json", index_of(R"("a": "link.safetensors")"));
  CHECK(problems_of_folder(folder.path() / "m")[0].ends_with(
      "it is a link that leaves the folder; copy the file itself into it (cp -L)"));
  // A link that stays inside is a file like any other.
  fs::copy_file(outside, folder.path() / "m/real.safetensors");
  fs::remove(folder.path() / "m/link.safetensors");
  fs::create_symlink("real.safetensors", folder.path() / "m/link.safetensors");
  CHECK(problems_of_folder(folder.path() / "m").empty());
}

TEST_CASE("an index that disagrees with its shards is refused with every problem") {
  const testing::TestFolder folder;
  write_safetensors(folder.path() / "m1.safetensors", {{"a", at::ones({2})}, {"x", at::ones({2})}});
  write_safetensors(folder.path() / "m2.safetensors", {{"b", at::ones({2})}});
  const std::string index = (folder.path() / "model.safetensors.index.json").string();
  folder.write("model.safetensors.index.json",
               index_of(R"("a": "m1.safetensors", "b": "m1.safetensors", "c": "m2.safetensors")"));
  CHECK(problems_of_folder(folder.path()) ==
        std::vector<std::string>{
            index + ": does not say that tensor \"x\" is in m1.safetensors",
            index + ": does not say that tensor \"b\" is in m2.safetensors",
            index + ": 'weight_map.c' is \"m2.safetensors\", which does not hold it"});
  folder.write("model.safetensors.index.json",
               index_of(R"("a": 3, "b": "absent.safetensors", "c": "m1.bin")"));
  CHECK(problems_of_folder(folder.path()) ==
        std::vector<std::string>{
            index + ": 'weight_map.a' is 3; allowed: a string",
            index + ": 'weight_map.b' is \"absent.safetensors\"; the file is missing",
            index + ": 'weight_map.c' is \"m1.bin\"; allowed: a .safetensors file"});
  folder.write("model.safetensors.index.json", R"({"weight_mapp": {}})");
  CHECK(problems_of_folder(folder.path()).size() == 2);
}

TEST_CASE("a folder without weights, or with pickles only, is refused with what to do") {
  const testing::TestFolder folder;
  CHECK(problems_of_folder(folder.path()) ==
        std::vector<std::string>{
            folder.path().string() +
            ": holds neither model.safetensors nor model.safetensors.index.json"});
  folder.write("pytorch_model.bin", "PK");
  REQUIRE(problems_of_folder(folder.path()).size() == 1);
  CHECK(problems_of_folder(folder.path())[0].find("pytorch_model.bin: is a pickle") !=
        std::string::npos);
  CHECK(problems_of_folder(folder.path())[0].find("save_pretrained") != std::string::npos);
  CHECK_THROWS_AS(WeightFolder(folder.path() / "absent"), IoError);
}

}  // namespace
}  // namespace piper::checkpoint
