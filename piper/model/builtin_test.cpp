// The built-ins against what their makers and the papers print.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/model/count.h>
#include <piper/model/import.h>
#include <tests/switches.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

namespace piper::model {
namespace {

double billions(int64_t count) { return static_cast<double>(count) / 1e9; }

TEST_CASE("every built-in loads, says its source, and leaves no key unread") {
  const std::vector<std::string> names = builtin_models();
  CHECK(std::is_sorted(names.begin(), names.end()));
  CHECK(names.size() >= 31);
  for (const std::string& name : names) {
    const Model model = load_model(name);
    CHECK(model.name == name);
    CHECK_MESSAGE(!model.source.empty(), name);
    CHECK_MESSAGE(model.ignored_keys.empty(), name);
    CHECK(active_parameters(model) <= count_parameters(model).total());
  }
}

TEST_CASE("a name is found in any case, a typing error gets a suggestion") {
  CHECK(load_model("DeepSeek-V3").name == "deepseek-v3");
  try {
    load_model("mixtral-8x7");
    FAIL("accepted");
  } catch (const InvalidInput& error) {
    CHECK(std::string(error.what()).find("did you mean 'mixtral-8x7b'?") != std::string::npos);
  }
  CHECK_THROWS_AS(load_model("no/such/config.json"), InvalidInput);
}

TEST_CASE("totals are what the makers print, within the last printed digit") {
  // Billions: total, its tolerance, active, its tolerance. Sources: the makers' READMEs and model
  // cards.
  struct Printed {
    const char* name;
    double total, total_within, active, active_within;
  };
  const Printed printed[] = {
      {"deepseek-v2", 236, 0.5, 21, 0.5},
      {"deepseek-v2-lite", 16, 0.5, 2.4, 0.3},  // active: 2.45 without the embedding
      {"deepseek-v3", 671, 0.5, 37, 0.6},
      {"deepseek-v3.2", 671, 1.0, 37, 1.5},  // printed as V3's: the indexer is not in it
      {"deepseek-moe-16b", 16.4, 0.05, 2.8, 0.05},
      {"qwen1.5-moe-a2.7b", 14.3, 0.05, 2.7, 0.05},
      {"qwen3-30b-a3b", 30, 0.6, 3, 0.5},  // "30.5B, 3.3B" on its model card
      {"qwen3-235b-a22b", 235, 0.5, 22, 0.5},
      {"qwen3-next-80b-a3b", 80, 0.5, 3, 1.0},
      {"arctic", 480, 2, 17, 0.5},
      {"kimi-k2", 1000, 50, 32, 1.0},
      {"olmoe-1b-7b", 6.9, 0.05, 1.3, 0.05},
      {"gpt-oss-20b", 21, 0.5, 3.6, 0.05},
      {"gpt-oss-120b", 117, 0.5, 5.1, 0.05},
      {"glm-4.5", 355, 3, 32, 1.0},
      {"grok-1", 314, 2, 86, 4},
      {"mixtral-8x7b", 46.7, 0.05, 12.9, 0.05},
      {"mixtral-8x22b", 141, 0.5, 39, 0.5},
      {"llama-4-scout", 109, 1.5, 17, 0.5},  // printed with its image encoder
      {"llama-4-maverick", 400, 1.0, 17, 0.5},
      {"glam-1.2t", 1200, 50, 96.6, 0.05},
      {"switch-base", 7.4, 0.05, 0.22, 0.03},
  };
  for (const Printed& row : printed) {
    const Model model = load_model(row.name);
    CHECK_MESSAGE(
        std::abs(billions(count_parameters(model).total()) - row.total) <= row.total_within,
        row.name);
    // Makers count the embedding or not: the nearer one decides.
    const double with = std::abs(billions(active_parameters(model)) - row.active);
    const double without = std::abs(billions(active_parameters(model, false)) - row.active);
    CHECK_MESSAGE(std::min(with, without) <= row.active_within, row.name);
  }
}

TEST_CASE(
    "DeepSeek-V3's next-token layer holds the 11.5 billion parameters of its own that the maker "
    "prints") {
  // README_WEIGHTS.md: "11.5B unique parameters (excluding the shared 0.9B Embedding and 0.9B
  // output Head)".
  CHECK(billions(count_parameters(load_model("deepseek-v3")).next_token_layers) ==
        doctest::Approx(11.5).epsilon(0.01));
}

TEST_CASE("experts and attention of M10B are the formula of Piper section VII-D") {
  // 32 * (4 * 5120^2 + E * 2 * 5120 * 20480); ERRATA Piper 2.
  const std::pair<const char*, std::pair<int64_t, double>> rows[] = {
      {"m10b-e16", {16, 110.7}}, {"m10b-e128", {128, 862.3}}, {"m10b-e256", {256, 1721.3}}};
  for (const auto& [name, figures] : rows) {
    const LayerParameters sum = count_parameters(load_model(name)).sum();
    const int64_t counted = sum.attention + sum.routed_experts;
    CHECK(counted == int64_t{32} * (4 * 5120 * 5120 + figures.first * 2 * 5120 * 20480));
    CHECK(std::abs(billions(counted) - figures.second) < 0.06);
  }
  const LayerParameters dense = count_parameters(load_model("m10b")).sum();
  CHECK(billions(dense.attention + dense.dense_mlp) == doctest::Approx(10.07).epsilon(1e-3));
}

TEST_CASE("the built-ins of Piper's Table IV give its migration sizes") {
  // 48 * E * d * f / 8 bytes; GiB but for Switch-Base and GLaM (ERRATA Piper 3).
  const std::pair<const char*, double> rows[] = {{"switch-base", 1.208e9},
                                                 {"mixtral-8x7b", 2.625 * (1 << 30)},
                                                 {"mixtral-8x22b", 4.5 * (1 << 30)},
                                                 {"grok-1", 9.0 * (1 << 30)},
                                                 {"glam-1.2t", 103.08e9},
                                                 {"deepseek-v2", 7.03 * (1 << 30)},
                                                 {"deepseek-v3", 21.0 * (1 << 30)}};
  for (const auto& [name, bytes] : rows) {
    const Model model = load_model(name);
    const FeedForward& f = model.layers.back().feed_forward;
    const double size = 48.0 / 8 * static_cast<double>(f.num_experts * model.hidden * f.ffn);
    CHECK_MESSAGE(size == doctest::Approx(bytes).epsilon(2e-3), name);
  }
}

TEST_CASE("the X-MoE shapes give the stated totals") {
  // arXiv 2508.13337: 10.1, 55.2, 201.4 billion. The largest does not follow from its script
  // (ERRATA Piper 6).
  CHECK(billions(count_parameters(load_model("xmoe-small")).total()) ==
        doctest::Approx(10.1).epsilon(0.005));
  CHECK(billions(count_parameters(load_model("xmoe-medium")).total()) ==
        doctest::Approx(55.2).epsilon(0.005));
  CHECK(billions(count_parameters(load_model("xmoe-large")).total()) ==
        doctest::Approx(201.4).epsilon(0.005));
}

TEST_CASE("the trainable built-ins have their size, family and routing") {
  const Model small = load_model("piper-10m"), large = load_model("piper-100m");
  CHECK(count_parameters(small).total() / 1e6 == doctest::Approx(10).epsilon(0.05));
  CHECK(count_parameters(large).total() / 1e6 == doctest::Approx(100).epsilon(0.1));
  CHECK(small.family == "qwen3_moe");
  CHECK(large.family == "mixtral");
  for (const Model& model : {small, large}) {
    CHECK(model.vocabulary == 256);
    CHECK_FALSE(model.tied_embeddings);
    CHECK(model.num_moe_layers() == model.num_layers());
    CHECK(model.layer_aux_coefficient() == doctest::Approx(0.01));
    CHECK(model.layers[0].feed_forward.normalise_top_k);
    CHECK(model.layers[0].attention.head_dim == 64);
    CHECK(model.assumptions.empty());
  }
}

TEST_CASE("built-ins are the makers' configs") {
  const std::map<std::string, std::string> files = {
      {"mixtral-8x7b", "Mixtral-8x7B-v0.1"},
      {"mixtral-8x22b", "Mixtral-8x22B-v0.1"},
      {"deepseek-v2", "DeepSeek-V2"},
      {"deepseek-v2-lite", "DeepSeek-V2-Lite"},
      {"deepseek-v3", "DeepSeek-V3"},
      {"deepseek-v3.2", "DeepSeek-V3.2"},
      {"deepseek-moe-16b", "DeepSeek-MoE-16B"},
      {"qwen3-30b-a3b", "Qwen3-30B-A3B"},
      {"qwen3-235b-a22b", "Qwen3-235B-A22B"},
      {"qwen3-next-80b-a3b", "Qwen3-Next-80B-A3B"},
      {"qwen1.5-moe-a2.7b", "Qwen1.5-MoE-A2.7B"},
      {"olmoe-1b-7b", "OLMoE-1B-7B"},
      {"glm-4.5", "GLM-4.5"},
      {"gpt-oss-20b", "gpt-oss-20b"},
      {"kimi-k2", "Kimi-K2-Instruct"},
      {"llama-4-scout", "Llama-4-Scout-17B-16E-Instruct"},
      {"llama-4-maverick", "Llama-4-Maverick-17B-128E-Instruct"}};
  const std::filesystem::path folder = "../shared/data/models";
  if (!std::filesystem::is_directory(folder)) {
    testing::skip_case("the folder ../shared/data/models is not there");
    return;
  }
  for (const auto& [name, file] : files) {
    const Model published = load_model(folder / (file + ".config.json"));
    const Model builtin = load_model(name);
    CHECK(published.name == file);
    CHECK_MESSAGE(published.layers == builtin.layers, name);
    CHECK_MESSAGE(count_parameters(published).total() == count_parameters(builtin).total(), name);
    CHECK(published.rope.theta == builtin.rope.theta);
    CHECK(published.rope.scaling == builtin.rope.scaling);
    CHECK(published.norm_epsilon == builtin.norm_epsilon);
    CHECK(published.router_aux_coefficient == builtin.router_aux_coefficient);
    CHECK(published.balancing_loss == builtin.balancing_loss);
    CHECK(published.max_positions == builtin.max_positions);
  }
}

}  // namespace
}  // namespace piper::model
