#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/checkpoint/checkpoint.h>
#include <piper/checkpoint/checkpoint_reader.h>
#include <piper/checkpoint/hf_weights.h>
#include <piper/checkpoint/safetensors.h>
#include <piper/nn/named_tensor.h>
#include <tests/test_folder.h>

#include <algorithm>

namespace piper::checkpoint {
namespace {

using nn::elements_of;
using nn::part_along;

const std::vector<int64_t> kShape = {6, 8};

at::Tensor whole() { return at::arange(48, at::kFloat).view({6, 8}); }

// The part's values: a view of the whole where it is a range along a dimension, else its elements.
nn::NamedTensor part(const nn::TensorPart& of, const std::string& name = "x") {
  const at::Tensor along = whole().narrow(of.dim, of.first, of.count);
  if (of.has_all_along()) return {name, along, of};
  return {name, along.reshape({-1}).narrow(0, of.begin, of.num_elements()), of};
}

std::string save_parts(const testing::TestFolder& folder,
                       const std::vector<std::vector<nn::NamedTensor>>& by_rank) {
  CheckpointSave save_parts(
      folder.path(),
      {.fingerprint = "f", .mesh = {.dp = std::ssize(by_rank)}, .layers_per_stage = {1}},
      {.step = 1});
  for (size_t r = 0; r < by_rank.size(); ++r) {
    std::vector<nn::NamedTensor> tensors;
    for (const nn::NamedTensor& tensor : by_rank[r]) tensors.push_back(nn::in_file(tensor));
    save_parts.write_shard(Rank(static_cast<int64_t>(r)), tensors);
  }
  return save_parts.commit().string();
}

// Ways to cut one tensor over ranks.
std::vector<std::vector<nn::TensorPart>> cuttings() {
  const nn::TensorPart left = part_along(kShape, 1, 0, 4), right = part_along(kShape, 1, 4, 4);
  return {
      {nn::whole_tensor(kShape)},
      {part_along(kShape, 0, 0, 2), part_along(kShape, 0, 2, 4)},
      {left, right},
      {part_along(kShape, 1, 0, 3), part_along(kShape, 1, 3, 3), part_along(kShape, 1, 6, 2)},
      {elements_of(nn::whole_tensor(kShape), 0, 17), elements_of(nn::whole_tensor(kShape), 17, 48)},
      {elements_of(left, 0, 10), elements_of(left, 10, 24), elements_of(right, 0, 5),
       elements_of(right, 5, 24)}};
}

std::vector<std::string> problems_of_parts(const testing::TestFolder& folder,
                                           const std::vector<nn::NamedTensor>& wanted) {
  try {
    CheckpointReader(require_newest_complete(folder.path())).read(wanted);
  } catch (const InvalidInput& error) {
    return error.problems();
  }
  return {};
}

}  // namespace

TEST_CASE("a tensor that ranks divide in one way is loaded by ranks that divide it in any other") {
  for (const std::vector<nn::TensorPart>& saved : cuttings()) {
    const testing::TestFolder folder;
    std::vector<std::vector<nn::NamedTensor>> by_rank;
    for (const nn::TensorPart& of : saved) by_rank.push_back({part(of)});
    save_parts(folder, by_rank);
    const CheckpointReader reader(require_newest_complete(folder.path()));
    for (const std::vector<nn::TensorPart>& loaded : cuttings())
      for (const nn::TensorPart& of : loaded) {
        CAPTURE(nn::text(of));
        const nn::NamedTensor expected = part(of);
        // Into a view of something wider, as columns of a fused parameter are.
        const at::Tensor wide = at::zeros({expected.value.size(0), 11});
        const at::Tensor value = expected.value.dim() == 2
                                     ? wide.narrow(1, 2, expected.value.size(1))
                                     : at::zeros_like(expected.value);
        reader.read({{"x", value, of}});
        CHECK(at::equal(value, expected.value));
      }
    std::vector<nn::NamedTensor> in_files;
    for (const nn::TensorPart& of : saved) in_files.push_back(nn::in_file(part(of)));
    const std::vector<nn::NamedTensor> again = nn::put_together(in_files);
    REQUIRE(again.size() == 1);
    CHECK(again[0].name == "x");
    CHECK(at::equal(again[0].value, whole()));
  }
}

TEST_CASE("parts that are missing, twice there or of another tensor are refused by name") {
  const nn::TensorPart left = part_along(kShape, 1, 0, 4), right = part_along(kShape, 1, 4, 4);
  {
    const testing::TestFolder folder;
    const std::string path = save_parts(folder, {{part(left)}});
    CHECK(problems_of_parts(folder, {{"x", at::zeros(kShape)}}) ==
          std::vector<std::string>{path + ": of tensor 'x' 24 of 48 elements are missing"});
    CHECK(problems_of_parts(folder, {{"x", at::zeros({6, 7})}}) ==
          std::vector<std::string>{path + ": tensor 'x' is F32 [6, 8]; allowed: F32 [6, 7]"});
    CHECK_THROWS_AS(nn::put_together({nn::in_file(part(left))}), InvalidInput);
  }
  {
    const testing::TestFolder folder;
    const std::string path =
        save_parts(folder, {{part(left)}, {part(part_along(kShape, 1, 3, 5))}});
    CHECK(
        problems_of_parts(folder, {}) ==
        std::vector<std::string>{
            path + ": tensor 'x' is both in rank-00000.safetensors and in rank-00001.safetensors"});
  }
  {
    const testing::TestFolder folder;
    nn::NamedTensor other{"x", at::zeros({6, 3}), part_along({6, 7}, 1, 4, 3)};
    const std::string path = save_parts(folder, {{part(left)}, {other}});
    CHECK(problems_of_parts(folder, {}) ==
          std::vector<std::string>{path + ": tensor 'x' has another shape or type in "
                                          "rank-00000.safetensors than in rank-00001.safetensors"});
  }
  CHECK_THROWS_AS(nn::name_in_file("x [6,8] 1:0-4", {6, 5}), InvalidInput);
  CHECK_THROWS_AS(nn::name_in_file("x y", {6, 5}), InvalidInput);
  CHECK(nn::name_in_file("x [6,8] 1:0-4", {6, 4}).name == "x");
}

TEST_CASE("of a Hugging Face tensor a rank reads its rows or columns, from a fused one as well") {
  const testing::TestFolder folder;
  const at::Tensor up = whole() + 100;
  write_safetensors(folder.path() / "model.safetensors",
                    {{"model.norm.weight", whole()},
                     {"model.layers.0.mlp.experts.gate_up_proj",
                      at::stack({at::cat({whole(), up}), at::cat({whole() + 200, up + 200})})}});
  const WeightFolder files(folder.path());
  for (const std::vector<nn::TensorPart>& cut : cuttings())
    for (const nn::TensorPart& of : cut) {
      if (!of.has_all_along()) continue;
      CAPTURE(nn::text(of));
      const at::Tensor expected = part(of).value;
      const at::Tensor norm = at::zeros_like(expected), expert = at::zeros_like(expected);
      load_weights(
          files,
          {{.name = "model.norm.weight", .value = norm, .part = of},
           {.name = "model.layers.0.mlp.experts.1.up_proj.weight", .value = expert, .part = of}},
          false);
      CHECK(at::equal(norm, expected));
      CHECK(at::equal(expert, expected + 300));
    }
}

}  // namespace piper::checkpoint
