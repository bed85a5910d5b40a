#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/manifest.h>

namespace piper::checkpoint {
namespace {

Manifest sample() {
  return {.identity = {.model = "small",
                       .fingerprint = "f1",
                       .mesh = {.pp = 2, .ep = 1, .dp = 1},
                       .layers_per_stage = {3, 2}},
          .state = {.step = 12,
                    .seed = ~uint64_t{0},
                    .target_tokens = 99,
                    .skipped_steps = 3,
                    .skipped_in_a_row = 2,
                    .text_fingerprint = "t",
                    .extra = {{"x", 1}}},
          .files = {{"rank-00000.safetensors", 5, "aa", {{"parameter/a", "0123"}}},
                    {"rank-00001.safetensors", 6, "bb"}}};
}

TEST_CASE("a manifest survives its JSON, with a seed of all 64 bits") {
  const Manifest manifest = sample();
  const Manifest back = parse_manifest(parse_json(to_json(manifest).dump(), "m"), "m");
  const bool same = back.identity == manifest.identity && back.files == manifest.files;
  CHECK(same);
  CHECK(back.state.seed == ~uint64_t{0});
  CHECK(back.state.step == 12);
  CHECK(back.state.extra == manifest.state.extra);
  CHECK(back.state.skipped_in_a_row == 2);
  CHECK(to_json(back) == to_json(manifest));
}

TEST_CASE("a manifest from before steps in a row were counted and tensors hashed is read") {
  Json json = to_json(sample());
  json["state"].erase("skipped_in_a_row");
  json["files"][0].erase("tensors");
  const Manifest old = parse_manifest(json, "m");
  CHECK(old.state.skipped_steps == 3);
  CHECK(old.state.skipped_in_a_row == 0);
  CHECK(old.files[0].tensors.empty());
  json["files"][0]["tensors"] = {{"a", 5}};
  CHECK_THROWS_AS(parse_manifest(json, "m"), InvalidInput);
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
                       "m: 'files' lists 1 files; allowed: one for each rank of pp 2 x ep 1 x dp 1",
                       InvalidInput);
  CHECK_THROWS_AS(parse_manifest(Json::array(), "m"), InvalidInput);
}

TEST_CASE("a checkpoint of another model is told; of another mesh, how it is laid out anew") {
  const Manifest manifest = sample();
  CheckpointIdentity run = manifest.identity;
  CHECK(differences(manifest, run, "d").empty());
  run.model = "other";
  run.fingerprint = "f2";
  CHECK(differences(manifest, run, "d") ==
        std::vector<std::string>{"d: is a checkpoint of another model: of 'small' (fingerprint "
                                 "f1), this run's is 'other' (f2)"});
  run = manifest.identity;
  CHECK(resharding(manifest.identity, run).empty());
  run.layers_per_stage = {2, 3};
  CHECK(differences(manifest, run, "d").empty());
  CHECK(resharding(manifest.identity, run) ==
        "resharding from 3 + 2 layers a stage to 2 + 3 layers a stage");
  run.mesh = {.pp = 1, .ep = 2, .dp = 2};
  run.layers_per_stage = {5};
  CHECK(differences(manifest, run, "d").empty());
  CHECK(resharding(manifest.identity, run) ==
        "resharding from pp 2 x ep 1 x dp 1 to pp 1 x ep 2 x dp 2");
}

TEST_CASE("a manifest of the earlier format is refused with what to do") {
  Json json = to_json(sample());
  json["format"] = "piper-checkpoint-1";
  try {
    parse_manifest(json, "m");
    FAIL("accepted");
  } catch (const InvalidInput& error) {
    REQUIRE(error.problems().size() == 1);
    CHECK(error.problems()[0].starts_with(
        "m: 'format' is \"piper-checkpoint-1\", written by an earlier Piper"));
  }
}

}  // namespace
}  // namespace piper::checkpoint
