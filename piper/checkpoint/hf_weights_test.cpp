#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/hf_weights.h>
#include <tests/test_folder.h>

#include <algorithm>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHidden = 8, kFfn = 6, kExperts = 3;

model::Model small_model(const std::string& family, bool tied = false) {
  model::Model m;
  m.name = "small";
  m.family = family;
  m.hidden = kHidden;
  m.vocabulary = 16;
  m.tied_embeddings = tied;
  model::Layer layer;
  layer.attention.num_heads = 4;
  layer.attention.num_kv_heads = 2;
  layer.attention.head_dim = 2;
  if (family == "qwen3_moe") layer.attention.qk_norm = model::QkNorm::kPerHead;
  if (family == "olmoe") layer.attention.qk_norm = model::QkNorm::kFull;
  layer.feed_forward.ffn = kFfn;
  layer.feed_forward.num_experts = kExperts;
  layer.feed_forward.top_k = 2;
  m.layers = {layer, layer};
  return m;
}

std::vector<nn::NamedTensor> random_weights(const model::Model& model) {
  at::manual_seed(11);
  std::vector<nn::NamedTensor> tensors;
  for (const TensorShape& tensor : expected_tensors(model))
    tensors.push_back({tensor.name, at::randn(tensor.shape)});
  return tensors;
}

at::Tensor value_of(const std::vector<nn::NamedTensor>& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const nn::NamedTensor& t) { return t.name == name; });
  REQUIRE(found != tensors.end());
  return found->value;
}

// Experts of each layer fused as the modules of transformers 5 hold them.
std::vector<nn::NamedTensor> fused(const std::vector<nn::NamedTensor>& tensors) {
  std::vector<nn::NamedTensor> out;
  for (const nn::NamedTensor& tensor : tensors)
    if (tensor.name.find(".experts.") == std::string::npos) out.push_back(tensor);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    std::vector<at::Tensor> gate_up, down;
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto matrix = [&](const char* name) {
        return value_of(tensors, fmt::format("{}{}.{}.weight", prefix, e, name));
      };
      gate_up.push_back(at::cat({matrix("gate_proj"), matrix("up_proj")}, 0));
      down.push_back(matrix("down_proj"));
    }
    out.push_back({prefix + "gate_up_proj", at::stack(gate_up)});
    out.push_back({prefix + "down_proj", at::stack(down)});
  }
  return out;
}

// Loads a copy of the folder: tests write the folder again, and a process must not write over files
// that it reads.
void check_loads(const fs::path& folder, const model::Model& model,
                 const std::vector<nn::NamedTensor>& weights) {
  const testing::TestFolder copy;
  fs::copy(folder, copy.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  const WeightFolder files(copy.path());
  CHECK_NOTHROW(check_weights(files, model));
  std::vector<nn::NamedPiece> pieces;
  for (const nn::NamedTensor& tensor : weights)
    pieces.push_back({.name = tensor.name, .value = at::zeros_like(tensor.value)});
  load_weights(files, pieces, model.tied_embeddings);
  for (size_t i = 0; i < pieces.size(); ++i) {
    CAPTURE(pieces[i].name);
    CHECK(at::equal(pieces[i].value, weights[i].value));
  }
}

std::vector<std::string> problems_of_weights(const fs::path& folder, const model::Model& model) {
  try {
    check_weights(WeightFolder(folder), model);
  } catch (const InvalidInput& error) {
    return error.problems();
  }
  return {};
}

TEST_CASE("the names and shapes are those that transformers 5.23 writes") {
  const auto names = [](const std::string& family) {
    std::vector<std::string> lines;
    for (const TensorShape& t : expected_tensors(small_model(family)))
      lines.push_back(t.name + " " + format_shape(t.shape));
    return lines;
  };
  const auto contains = [](const std::vector<std::string>& lines, const char* line) {
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  };
  const auto mixtral = names("mixtral"), qwen3 = names("qwen3_moe"), olmoe = names("olmoe");
  CHECK(mixtral.size() == 3 + 2 * (4 + 2 + 1 + 9));
  CHECK(qwen3.size() == olmoe.size());
  CHECK(qwen3.size() == mixtral.size() + 4);
  CHECK(contains(mixtral, "model.layers.1.block_sparse_moe.experts.2.w2.weight [8, 6]"));
  CHECK(contains(mixtral, "model.layers.1.block_sparse_moe.gate.weight [3, 8]"));
  CHECK(contains(qwen3, "model.layers.0.mlp.experts.0.gate_proj.weight [6, 8]"));
  CHECK(contains(qwen3, "model.layers.0.self_attn.k_norm.weight [2]"));
  CHECK(contains(olmoe, "model.layers.0.self_attn.k_norm.weight [4]"));
  CHECK(contains(olmoe, "model.layers.0.self_attn.q_norm.weight [8]"));
  CHECK(contains(olmoe, "model.layers.0.self_attn.k_proj.weight [4, 8]"));
  CHECK(contains(olmoe, "lm_head.weight [16, 8]"));
}

TEST_CASE("an exported folder loads bit by bit, in one file or in shards, of each family") {
  for (const std::string family : {"mixtral", "qwen3_moe", "olmoe"}) {
    CAPTURE(family);
    const testing::TestFolder folder;
    const model::Model model = small_model(family);
    const auto weights = random_weights(model);
    auto replicas = weights;
    replicas.insert(replicas.begin() + 5, weights.begin(), weights.begin() + 9);
    const Json config = {{"model_type", family}, {"torch_dtype", "bfloat16"}};
    export_weights(folder.path(), config, replicas, 2000);
    CHECK(fs::exists(folder.path() / "model.safetensors.index.json"));
    check_loads(folder.path(), model, weights);
    export_weights(folder.path(), config, replicas);
    CHECK_FALSE(fs::exists(folder.path() / "model.safetensors.index.json"));
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) ==
          2);  // the shards of the first export are gone
    check_loads(folder.path(), model, weights);
    CHECK(read_json_file(folder.path() / "config.json") ==
          Json({{"written_by", "piper"}, {"model_type", family}, {"dtype", "float32"}}));
    CHECK(SafetensorsFile(folder.path() / "model.safetensors").metadata().at("format") == "pt");
  }
}

TEST_CASE(
    "fused experts and the other family's spelling are read, a rank takes its own experts only") {
  const testing::TestFolder folder;
  const model::Model qwen3 = small_model("olmoe"), mixtral = small_model("mixtral");
  const auto weights = random_weights(qwen3);
  write_safetensors(folder.path() / "model.safetensors", fused(weights));
  check_loads(folder.path(), qwen3, weights);

  auto renamed = random_weights(mixtral);
  fs::create_directories(folder.path() / "m");
  std::vector<nn::NamedTensor> without_norms;
  for (const nn::NamedTensor& tensor : weights)
    if (tensor.name.find("_norm.") == std::string::npos) without_norms.push_back(tensor);
  REQUIRE(without_norms.size() == renamed.size());
  for (size_t i = 0; i < renamed.size(); ++i)
    renamed[i].value = without_norms[i].value;  // the same order
  write_safetensors(folder.path() / "m/model.safetensors", fused(without_norms));
  check_loads(folder.path() / "m", mixtral, renamed);
  write_safetensors(folder.path() / "m/model.safetensors", without_norms);
  check_loads(folder.path() / "m", mixtral, renamed);
}

TEST_CASE("a tied head is read from the embedding and not exported") {
  const testing::TestFolder folder;
  const model::Model model = small_model("mixtral", true);
  auto weights = random_weights(model);
  weights.push_back({"lm_head.weight", weights[0].value});
  export_weights(folder.path(), {{"tie_word_embeddings", true}}, weights);
  CHECK(WeightFolder(folder.path()).find("lm_head.weight") == nullptr);
  check_loads(folder.path(), model, weights);
  fs::remove(folder.path() / "model.safetensors");
  write_safetensors(folder.path() / "model.safetensors",
                    weights);  // some files keep it all the same
  check_loads(folder.path(), model, weights);
}

TEST_CASE("modules of multi-token prediction have the names and repeated tables of DeepSeek-V3's") {
  for (const bool tied : {false, true}) {
    const testing::TestFolder folder;
    model::Model plain = small_model("qwen3_moe", tied);
    const model::Model model = model::with_mtp(plain, 1);
    const auto weights = random_weights(model);
    // A layer like the others (4 projections, 2 norms of q and k, router, 2 norms, 9 of experts), a
    // join and 3 norms.
    CHECK(weights.size() == random_weights(plain).size() + 18 + 4);
    const Json config = config_with_modules({{"tie_word_embeddings", tied}}, model);
    CHECK(config.at("num_nextn_predict_layers") == 1);
    export_weights(folder.path(), config, with_module_tables(weights, model));
    const WeightFolder written(folder.path());
    const auto shape = [&](const char* name) {
      const TensorEntry* entry = written.find(std::string("model.layers.2.") + name);
      return entry == nullptr ? std::vector<int64_t>() : entry->shape;
    };
    CHECK(shape("eh_proj.weight") == std::vector<int64_t>{8, 16});
    for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"})
      CHECK(shape(norm) == std::vector<int64_t>{8});
    CHECK(shape("mlp.experts.2.down_proj.weight") == std::vector<int64_t>{8, 6});
    for (const char* table : {"embed_tokens.weight", "shared_head.head.weight"})
      CHECK(shape(table) == std::vector<int64_t>{16, 8});
    const at::Tensor head = at::zeros({16, 8});
    written.read("model.layers.2.shared_head.head.weight", head, 0);
    CHECK(
        at::equal(head, value_of(weights, tied ? "model.embed_tokens.weight" : "lm_head.weight")));
    check_loads(folder.path(), model, weights);
    // Without the module: what the config counts is left out, what it does not count is too much.
    CHECK(problems_of_weights(folder.path(), plain).size() > 10);
    plain.num_next_token_layers = 1;
    CHECK(problems_of_weights(folder.path(), plain).empty());
    CHECK(problems_of_weights(folder.path(), model::with_mtp(plain, 2)).size() >
          10);  // one is missing
  }
}

TEST_CASE("every missing, superfluous and mis-shaped tensor is listed at once") {
  const testing::TestFolder folder;
  const std::string path = folder.path().string();
  const model::Model model = small_model("mixtral");
  auto weights = random_weights(model);
  std::erase_if(weights, [](const nn::NamedTensor& t) {
    return t.name == "model.norm.weight" || t.name.ends_with("1.w3.weight");
  });
  weights[0].value = at::zeros({17, 8});
  weights.push_back({"model.layers.9.extra", at::zeros({2})});
  weights.push_back(
      {"model.layers.0.self_attn.rotary_emb.inv_freq", at::zeros({2})});  // a buffer of old files
  write_safetensors(folder.path() / "model.safetensors", weights);
  CHECK(
      problems_of_weights(folder.path(), model) ==
      std::vector<std::string>{
          path + ": tensor 'model.embed_tokens.weight' has the shape [17, 8]; allowed: [16, 8]",
          path + ": tensor 'model.layers.0.block_sparse_moe.experts.1.w3.weight' [6, 8] is missing",
          path + ": tensor 'model.layers.1.block_sparse_moe.experts.1.w3.weight' [6, 8] is missing",
          path + ": tensor 'model.norm.weight' [8] is missing",
          path + ": tensor 'model.layers.9.extra' [2] is superfluous"});
  const std::vector<nn::NamedPiece> pieces = {
      {.name = "model.norm.weight", .value = at::zeros({8})},
      {.name = "model.embed_tokens.weight", .value = at::zeros({16, 8})}};
  try {
    load_weights(WeightFolder(folder.path()), pieces, false);
    FAIL("loaded pieces that are not there");
  } catch (const InvalidInput& error) {
    CHECK(error.problems().size() == 2);
  }
}

TEST_CASE("fused experts of another number or size are refused") {
  const testing::TestFolder folder;
  const model::Model model = small_model("qwen3_moe");
  auto weights = fused(random_weights(model));
  const std::string name = "model.layers.1.mlp.experts.gate_up_proj";
  const auto with = [&](at::Tensor value) {
    for (nn::NamedTensor& tensor : weights)
      if (tensor.name == name) tensor.value = value;
    fs::remove(folder.path() / "model.safetensors");
    write_safetensors(folder.path() / "model.safetensors", weights);
    return problems_of_weights(folder.path(), model);
  };
  const std::string path = folder.path().string();
  CHECK(with(at::zeros({3, 12, 8})).empty());
  CHECK(with(at::zeros({4, 12, 8})) ==
        std::vector<std::string>{path + ": tensor '" + name +
                                 "' [4, 12, 8] holds more experts than the model has"});
  CHECK(with(at::zeros({2, 12, 8})) ==
        std::vector<std::string>{path +
                                 ": tensor 'model.layers.1.mlp.experts.2.gate_proj.weight' (in '" +
                                 name + "') has the shape [2, 12, 8]; allowed: [3, 12, 8]"});
  CHECK(with(at::zeros({3, 8, 12})).size() == 1);
  CHECK(with(at::zeros({288})).size() == 1);
}

}  // namespace
}  // namespace piper::checkpoint
