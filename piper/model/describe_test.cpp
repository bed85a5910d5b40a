#include <doctest/doctest.h>
#include <piper/model/describe.h>
#include <piper/model/import.h>

namespace piper::model {
namespace {

TEST_CASE("equal layers are one kind, wherever they stand") {
  const std::vector<LayerKind> kinds = layer_kinds(load_model("deepseek-v3"));
  REQUIRE(kinds.size() == 2);
  CHECK(kinds[0].range() == "0-2");
  CHECK(kinds[1].range() == "3-60");
  const std::vector<LayerKind> alternating = layer_kinds(load_model("gpt-oss-20b"));
  REQUIRE(alternating.size() == 2);
  CHECK(alternating[1].layers.size() == 12);
  CHECK(alternating[1].range().starts_with("1, 3, 5"));
}

TEST_CASE("layers in words") {
  const Model mixtral = load_model("mixtral-8x7b"), oss = load_model("gpt-oss-20b"),
              next = load_model("qwen3-next-80b-a3b");
  CHECK(describe(mixtral.layers[0].attention) == "32 heads of 128, 8 kv");
  CHECK(describe(mixtral.layers[0].feed_forward) == "8 experts of 14336, top 2");
  CHECK(describe(oss.layers[0].attention) == "64 heads of 64, 8 kv, window 128");
  CHECK(describe(next.layers[0].attention) == "gated delta, 32 heads of 128");
  CHECK(describe(next.layers[0].feed_forward) == "512 experts of 512, top 10, shared 512");
  CHECK(describe(load_model("deepseek-v3.2").layers[0].attention) ==
        "128 heads, latent rank 512, indexed");
  CHECK(describe(load_model("arctic").layers[0].feed_forward) ==
        "128 experts of 4864, top 2, dense 7168 beside");
}

}  // namespace
}  // namespace piper::model
