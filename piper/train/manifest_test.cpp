#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/train/manifest.h>

namespace piper::train {
namespace {

Manifest sample() {
  return {.identity = {.model = "small",
                       .fingerprint = "f1",
                       .mesh = {.pp = 2, .ep = 1, .dp = 1},
                       .layers_per_stage = {3, 2}},
          .state = {.step = 12,
                    .seed = ~uint64_t{0},
                    .target_tokens = 99,
                    .skipped_steps = 1,
                    .text_fingerprint = "t",
                    .extra = {{"x", 1}}},
          .files = {{"rank-00000.safetensors", 5, "aa"}, {"rank-00001.safetensors", 6, "bb"}}};
}

TEST_CASE("a manifest survives its JSON, with a seed of all 64 bits") {
  const Manifest manifest = sample();
  const Manifest back = parse_manifest(parse_json(to_json(manifest).dump(), "m"), "m");
  const bool same = back.identity == manifest.identity && back.files == manifest.files;
  CHECK(same);
  CHECK(back.state.seed == ~uint64_t{0});
  CHECK(back.state.step == 12);
  CHECK(back.state.extra == manifest.state.extra);
  CHECK(to_json(back) == to_json(manifest));
}

TEST_CASE("a manifest that nobody wrote is refused with all problems") {
  Json json = to_json(sample());
  json["state"]["seed"] = "-1";
  json["files"][1]["name"] = "../../etc/passwd";
  json["colour"] = 1;
  try {
    parse_manifest(json, "m");
    FAIL("accepted");
  } catch (const InvalidInput& error) {
    CHECK(error.problems().size() == 3);
  }
  json = to_json(sample());
  json["files"].erase(1);
  CHECK_THROWS_WITH_AS(parse_manifest(json, "m"),
                       "m: 'files' lists 1 files; allowed: one for each of 2 ranks", InvalidInput);
  CHECK_THROWS_AS(parse_manifest(Json::array(), "m"), InvalidInput);
}

TEST_CASE("a checkpoint of another model, number of ranks or mesh is told in one line each") {
  const Manifest manifest = sample();
  CheckpointIdentity run = manifest.identity;
  CHECK(differences(manifest, run, "d").empty());
  run.model = "other";
  run.fingerprint = "f2";
  run.mesh.dp = 2;
  CHECK(differences(manifest, run, "d") ==
        std::vector<std::string>{"d: is a checkpoint of another model: of 'small' (fingerprint "
                                 "f1), this run's is 'other' (f2)",
                                 "d: was saved by 2 ranks (pp 2, ep 1, dp 1); this run's strategy "
                                 "is for 4 (pp 2, ep 1, dp 2); allowed: the same"});
  run = manifest.identity;
  run.mesh = {.pp = 1, .ep = 2, .dp = 2};
  CHECK(differences(manifest, run, "d") ==
        std::vector<std::string>{"d: was saved on the mesh pp 2, ep 1, dp 1; this run's is pp 1, "
                                 "ep 2, dp 2; allowed: the same"});
  run = manifest.identity;
  run.layers_per_stage = {2, 3};
  CHECK(differences(manifest, run, "d") ==
        std::vector<std::string>{
            "d: was saved with 3, 2 layers a stage; this run has 2, 3; allowed: the same"});
}

TEST_CASE("the fingerprint sees what a model computes, not its name or how it is trained") {
  model::Model model;
  model.hidden = 8;
  model.layers.resize(2);
  const std::string before = model_fingerprint(model);
  CHECK(before.size() == 64);
  model.name = "renamed";
  model.router_aux_coefficient = 0.5;
  CHECK(model_fingerprint(model) == before);
  model.layers[1].feed_forward.top_k = 4;
  const std::string routed = model_fingerprint(model);
  CHECK(routed != before);
  model.rope.theta = 5e5;
  CHECK(model_fingerprint(model) != routed);
}

}  // namespace
}  // namespace piper::train
