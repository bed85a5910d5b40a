// A checkpoint of any mesh loads on any other: every tensor of the model bit by bit, every expert
// exactly once.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/checkpoint.h>
#include <piper/checkpoint/checkpoint_reader.h>
#include <piper/checkpoint/checkpoint_state.h>
#include <piper/checkpoint/hf_names.h>
#include <piper/checkpoint/safetensors.h>
#include <tests/test_folder.h>

#include <functional>
#include <map>

namespace piper::checkpoint {
namespace {

namespace fs = std::filesystem;

model::Model example(const std::string& family, bool tied) {
  model::Model m;
  m.name = "small";
  m.family = family;
  m.hidden = 8;
  m.vocabulary = 16;
  m.tied_embeddings = tied;
  for (int i = 0; i < 5; ++i) {
    model::Layer layer;
    layer.attention.num_heads = 4;
    layer.attention.num_kv_heads = 2;
    layer.attention.head_dim = 2;
    layer.attention.qk_norm = i % 2 ? model::QkNorm::kPerHead : model::QkNorm::kNone;
    layer.feed_forward.ffn = 8;
    if (i != 1) {  // one dense layer among them
      layer.feed_forward.num_experts = 4;
      layer.feed_forward.top_k = 2;
    }
    m.layers.push_back(layer);
  }
  return m;
}

struct Layout {
  strategy::Mesh mesh;
  std::vector<int64_t> layers_per_stage;
  strategy::PipelineSchedule schedule = strategy::PipelineSchedule::k1F1B;
  bool sequence_parallel = true;  // beside tp
};
const std::vector<Layout> kLayouts = {
    {{1, 1, 1}, {5}},
    {{1, 4, 4}, {5}},
    {{1, 1, 4}, {5}},
    {{1, 2, 4}, {5}},
    {{2, 1, 1}, {2, 3}},
    {{2, 1, 1}, {4, 1}},
    {{2, 2, 2}, {3, 2}},
    {{2, 2, 4}, {1, 4}},
    {{3, 1, 2}, {1, 1, 3}},
    {{5, 4, 4}, {1, 1, 1, 1, 1}},
    {{.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, {1, 2, 1, 1}, strategy::PipelineSchedule::kInterleaved},
    {{.pp = 2, .ep = 1, .dp = 2, .vpp = 2}, {2, 1, 2, 0}, strategy::PipelineSchedule::kZbV}};
// Whose ranks share matrices, of experts too, each with a part of them; or sequences, each with
// all.
const std::vector<Layout> kTensorLayouts = {{{.dp = 2, .tp = 2}, {5}},
                                            {{.pp = 2, .ep = 2, .tp = 2}, {2, 3}},
                                            {{.ep = 4, .tp = 4}, {5}},
                                            {{.ep = 2, .dp = 2, .etp = 2, .tp = 2}, {5}},
                                            {{.pp = 2, .dp = 4, .etp = 4}, {3, 2}},
                                            {{.cp = 2}, {5}},
                                            {{.pp = 2, .ep = 2, .tp = 2, .cp = 2}, {2, 3}},
                                            {.mesh = {.ep = 2, .dp = 2, .etp = 2, .tp = 2},
                                             .layers_per_stage = {5},
                                             .sequence_parallel = false}};

// All ranks of a mesh with their optimizers.
struct Ranks {
  Layout layout;
  std::vector<std::unique_ptr<nn::Stage>> stages;
  std::vector<optim::AdamW> optimizers;

  Ranks(const model::Model& model, const Layout& of) : layout(of) {
    strategy::Strategy s;
    s.mesh = layout.mesh;
    s.schedule = layout.schedule;
    s.layers_per_stage = layout.layers_per_stage;
    s.sequence = 4;
    s.sequence_parallel = layout.sequence_parallel && layout.mesh.tp > 1;
    s.global_batch_sequences = s.mesh.dp;
    s.micro_batch_sequences = s.num_micro_batches = 1;
    const nn::StageOptions options{.mtp_target_tokens = {1, 1}};
    for (int64_t i = 0; i < s.mesh.world(); ++i) {
      stages.push_back(nn::make_stage(model, s, Rank(i), options));
      optimizers.emplace_back(stages.back()->parameters(), optim::AdamWOptions{});
    }
  }
  std::vector<nn::NamedTensor> held(size_t i) { return state_tensors(*stages[i], optimizers[i]); }
  std::vector<nn::NamedTensor> written(size_t i) {
    return written_tensors(*stages[i], optimizers[i], layout.mesh, Rank(static_cast<int64_t>(i)));
  }
};

// The values of a tensor, decided by its name alone.
at::Tensor expected(const nn::NamedTensor& tensor) {
  if (tensor.value.scalar_type() == at::kLong) return at::full({1}, 41, at::kLong);
  at::manual_seed(std::hash<std::string>()(tensor.name));
  const nn::TensorPart part = nn::part_of(tensor);
  return at::randn(part.shape).narrow(part.dim, part.first, part.count);
}

void fill_ranks(Ranks& ranks) {
  for (size_t i = 0; i < ranks.stages.size(); ++i)
    for (const nn::NamedTensor& tensor : ranks.held(i)) tensor.value.copy_(expected(tensor));
}

fs::path save(const fs::path& folder, Ranks& ranks) {
  CheckpointSave save(folder,
                      {.model = "small",
                       .fingerprint = "f",
                       .mesh = ranks.layout.mesh,
                       .layers_per_stage = ranks.layout.layers_per_stage},
                      {.step = 3});
  for (size_t i = 0; i < ranks.stages.size(); ++i)
    save.write_shard(Rank(static_cast<int64_t>(i)), ranks.written(i));
  return save.commit();
}

// Counts the tensors of all ranks that differ from the values decided by name.
int num_differing(Ranks& ranks) {
  int num = 0;
  for (size_t i = 0; i < ranks.stages.size(); ++i)
    for (const nn::NamedTensor& tensor : ranks.held(i))
      num += at::equal(tensor.value, expected(tensor)) ? 0 : 1;
  return num;
}

TEST_CASE("every mesh writes every tensor of the model once and loads what any other mesh wrote") {
  int num_pairs = 0, num_tensors = 0, num_bad = 0;
  struct Case {
    const char* family;
    bool tied;
    int64_t mtp_depth;
  };
  for (const Case& c : {Case{"qwen3_moe", false, 0},
                        {"qwen3_moe", true, 0},
                        {"mixtral", false, 0},
                        {"mixtral", false, 2},
                        {"qwen3_moe", true, 1}}) {
    const model::Model model = model::with_mtp(example(c.family, c.tied), c.mtp_depth);
    std::vector<Layout> layouts = kLayouts;
    if (c.mtp_depth == 0)
      layouts.insert(layouts.end(), kTensorLayouts.begin(), kTensorLayouts.end());
    for (const Layout& from : layouts) {
      const testing::TestFolder folder;
      Ranks saved(model, from);
      CHECK(num_differing(saved) > 0);  // the comparison can see a difference
      fill_ranks(saved);
      save(folder.path(), saved);
      const CheckpointReader reader(require_newest_complete(folder.path()));
      CHECK_NOTHROW(reader.require_exactly(model));
      for (const Layout& to : layouts) {
        CAPTURE(describe(from.mesh));
        CAPTURE(describe(to.mesh));
        Ranks loaded(model, to);
        for (size_t i = 0; i < loaded.stages.size(); ++i) {
          reader.read(loaded.held(i));
          num_tensors += static_cast<int>(loaded.held(i).size());
        }
        num_bad += num_differing(loaded);
        ++num_pairs;
      }
    }
  }
  MESSAGE(num_pairs << " pairs of meshes, " << num_tensors << " tensors loaded, " << num_bad
                    << " differ");
  CHECK(num_bad == 0);
}

TEST_CASE("to one rank and back gives the bytes of the first checkpoint") {
  const model::Model model = example("qwen3_moe", false);
  const testing::TestFolder folder;
  Ranks first(model, kLayouts[7]);
  fill_ranks(first);
  const fs::path original = save(folder.path() / "first", first);
  Ranks one(model, kLayouts[0]);
  CheckpointReader(require_newest_complete(folder.path() / "first")).read(one.held(0));
  save(folder.path() / "one", one);
  Ranks back(model, kLayouts[7]);
  const CheckpointReader reader(require_newest_complete(folder.path() / "one"));
  for (size_t i = 0; i < back.stages.size(); ++i) reader.read(back.held(i));
  const fs::path again = save(folder.path() / "back", back);
  for (const auto& entry : fs::directory_iterator(original))
    CHECK(read_text_file(entry.path()) == read_text_file(again / entry.path().filename()));
}

TEST_CASE("replicas share the writing: no rank writes more than its part and a tensor") {
  const model::Model model = example("qwen3_moe", false);
  Ranks ranks(model, {{1, 1, 4}, {5}});
  int64_t total = 0;
  std::map<size_t, int64_t> elements;
  for (size_t i = 0; i < 4; ++i)
    for (const nn::NamedTensor& tensor : ranks.written(i)) {
      elements[i] += tensor.value.numel();
      total += tensor.value.numel();
    }
  for (const auto& [rank, count] : elements) {
    CAPTURE(rank);
    CHECK(count > total / 8);
    CHECK(count < total / 2);
  }
}

TEST_CASE("an expert that is missing or there twice is refused by name") {
  const model::Model model = example("qwen3_moe", false);
  const std::string expert = "first_moment/model.layers.4.mlp.experts.3.up_proj.weight";
  for (const bool twice : {false, true}) {
    const testing::TestFolder folder;
    Ranks ranks(model, {{1, 2, 2}, {5}});
    fill_ranks(ranks);
    CheckpointSave save(folder.path(),
                        {.fingerprint = "f", .mesh = {1, 2, 2}, .layers_per_stage = {5}},
                        {.step = 1});
    std::vector<nn::NamedTensor> first = ranks.written(0), second = ranks.written(1);
    const auto here = [&](const nn::NamedTensor& tensor) { return tensor.name == expert; };
    const auto found = std::ranges::find_if(second, here);
    REQUIRE(found != second.end());
    if (twice)
      first.push_back(*found);
    else
      second.erase(found);
    save.write_shard(Rank(0), first);
    save.write_shard(Rank(1), second);
    const std::string path = save.commit().string();
    try {
      CheckpointReader(require_newest_complete(folder.path())).require_exactly(model);
      FAIL("accepted");
    } catch (const InvalidInput& error) {
      CHECK(error.problems() ==
            std::vector<std::string>{
                path + ": tensor '" + expert +
                (twice ? "' is both in rank-00000.safetensors and in rank-00001.safetensors"
                       : "' is missing")});
    }
  }
}

TEST_CASE("more ranks than tensors: a shard may be empty") {
  const testing::TestFolder folder;
  CheckpointSave save(
      folder.path(), {.fingerprint = "f", .mesh = {1, 1, 2}, .layers_per_stage = {1}}, {.step = 1});
  save.write_shard(Rank(0), {{"a", at::ones({2})}});
  save.write_shard(Rank(1), {});
  save.commit();
  const at::Tensor read = at::zeros({2});
  CheckpointReader(require_newest_complete(folder.path())).read({{"a", read}});
  CHECK(at::equal(read, at::ones({2})));
}

}  // namespace
}  // namespace piper::checkpoint
