#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/strategy/strategy.h>

#include <numeric>

using namespace piper;
using namespace piper::strategy;

namespace {

constexpr const char* kSound = R"({
  "model": "mixtral-8x7b", "cluster": "dgx-h100",
  "mesh": {"pp": 2, "ep": 4, "dp": 8, "edp": 2},
  "layers_per_stage": [16, 16], "schedule": "1f1b", "recompute": "full", "precision": "bf16",
  "sequence": 4096, "global_batch_sequences": 64, "micro_batch_sequences": 2, "num_micro_batches": 4,
  "predicted": {"mfu": 0.4}})";

Json sound() { return parse_json(kSound, "s.json"); }

std::vector<std::string> problems_of(const Json& json) {
  try {
    parse_strategy(json, "s.json");
  } catch (const InvalidInput& e) {
    return e.problems();
  }
  return {};
}

}  // namespace

TEST_CASE("a strategy is read, and written as it was read") {
  const Strategy strategy = parse_strategy(sound(), "s.json");
  CHECK(strategy.mesh == Mesh{.pp = 2, .ep = 4, .dp = 8});
  CHECK(strategy.layers_per_stage == std::vector<int64_t>{16, 16});
  CHECK(strategy.schedule == PipelineSchedule::k1F1B);
  CHECK(strategy.recompute == Recompute::kFull);
  CHECK(strategy.precision == Precision::kBf16);
  CHECK(strategy.predicted->at("mfu") == 0.4);
  CHECK(to_json(strategy) == sound());
  CHECK(to_json(parse_strategy(to_json(strategy), "again.json")) == to_json(strategy));
}

TEST_CASE("what is derived or only for messages may be left out") {
  Json json = sound();
  json["mesh"].erase("edp");
  json.erase("model");
  json.erase("cluster");
  json.erase("predicted");
  CHECK(parse_strategy(json, "s.json").mesh.edp() == 2);
  CHECK_FALSE(to_json(parse_strategy(json, "s.json")).contains("predicted"));
}

TEST_CASE("every exchange is read by its name, and tokens travel only where experts are spread") {
  for (const AllToAll algorithm : kEveryAllToAll) {
    Json json = sound();
    json["all_to_all"] = name(algorithm);
    CHECK(parse_strategy(json, "s.json").all_to_all == algorithm);
  }
  Strategy s = parse_strategy(sound(), "s.json");
  s.all_to_all = AllToAll::kHaloDedup;
  s.mesh.ep = 1;
  CHECK_FALSE(deduplicates(s));
  s.mesh.ep = 2;
  CHECK(deduplicates(s));
}

TEST_CASE("nothing else is: there are no silent defaults") {
  for (const char* key :
       {"mesh", "layers_per_stage", "schedule", "recompute", "precision", "sequence",
        "global_batch_sequences", "micro_batch_sequences", "num_micro_batches"}) {
    Json json = sound();
    json.erase(key);
    CHECK(problems_of(json) == std::vector{"s.json: '" + std::string(key) + "' is missing"});
  }
}

TEST_CASE("all problems of a strategy are named at once") {
  Json json = sound();
  json["mesh"]["pp"] = -1;
  json["mesh"]["epx"] = 2;
  json["sequence"] = 3.7;
  json["schedule"] = "1f1";
  json["colour"] = "red";
  json["layers_per_stage"][1] = "x";
  CHECK(problems_of(json) ==
        std::vector<std::string>{
            "s.json: 'mesh.pp' is -1; allowed: an integer from 1 to 1000000",
            "s.json: 'mesh.epx' is not a known key; did you mean 'ep'?",
            "s.json: 'layers_per_stage[1]' is \"x\"; allowed: an integer from 0 to 1000000",
            "s.json: 'sequence' is 3.7; allowed: an integer from 1 to 4294967296",
            "s.json: 'schedule' is '1f1'; allowed: gpipe, 1f1b, interleaved, zb-h1, zb-v, "
            "dualpipev, 1f1b-pairs, interleaved-pairs; did you mean '1f1b'?",
            "s.json: 'colour' is not a known key",
        });
}

TEST_CASE("a strategy that contradicts itself is refused, with everything wrong about it") {
  Json json = sound();
  json["mesh"]["ep"] = 3;
  json["layers_per_stage"] = {32};
  json["num_micro_batches"] = 5;
  json["precision"] = "fp12";
  const std::vector<std::string> problems = problems_of(json);
  REQUIRE(problems.size() == 4);
  CHECK(problems[0].find("'precision' is 'fp12'; allowed: fp32, bf16, fp64") != std::string::npos);
  CHECK(problems[1] == "s.json: 'mesh.ep' is 3; allowed: a divisor of 'mesh.dp' 8 (1, 2, 4, 8)");
  CHECK(problems[2].find("'layers_per_stage' has 1 entries") != std::string::npos);
  CHECK(problems[3] ==
        "s.json: 'global_batch_sequences' is 64; allowed: 'mesh.dp' x 'micro_batch_sequences' x "
        "'num_micro_batches' = 8 x 2 x 5 = 80");
}

TEST_CASE("a derived edp that disagrees is refused") {
  Json json = sound();
  json["mesh"]["edp"] = 4;
  CHECK(problems_of(json) ==
        std::vector<std::string>{
            "s.json: 'mesh.edp' is 4; allowed: 'mesh.dp' / 'mesh.ep' = 8 / 4 = 2"});
}

TEST_CASE("a document that is no object is one problem") {
  CHECK(problems_of(Json::array({1})).front() ==
        "s.json: the document is of type array; allowed: an object");
}

TEST_CASE("a number of stages follows from layers a stage, or does not") {
  CHECK(layers_that_make(16, 48) == 3);
  CHECK(layers_that_make(16, 47) == 3);
  CHECK(layers_that_make(20, 48) == 0);  // 2 a stage make 24, 3 make 16
  CHECK(layers_that_make(40, 56) == 0);
  CHECK(layers_that_make(1, 7) == 7);
}

TEST_CASE("the default split is even, and the ends take the remainder last") {
  CHECK(even_split(8, 4) == std::vector<int64_t>{2, 2, 2, 2});
  CHECK(even_split(7, 4) == std::vector<int64_t>{1, 2, 2, 2});
  CHECK(even_split(6, 4) == std::vector<int64_t>{1, 2, 2, 1});
  CHECK(even_split(5, 4) == std::vector<int64_t>{1, 1, 2, 1});
  CHECK(even_split(7, 5) == std::vector<int64_t>{1, 1, 2, 2, 1});
  CHECK(even_split(3, 2) == std::vector<int64_t>{1, 2});
  CHECK(even_split(5, 1) == std::vector<int64_t>{5});
  for (int64_t layers = 1; layers < 40; ++layers)
    for (int64_t pp = 1; pp <= layers; ++pp) {
      const std::vector<int64_t> split = even_split(layers, pp);
      CHECK(std::accumulate(split.begin(), split.end(), int64_t{0}) == layers);
      CHECK(*std::max_element(split.begin(), split.end()) -
                *std::min_element(split.begin(), split.end()) <=
            1);
    }
  CHECK_THROWS_AS(even_split(2, 3), InternalError);
}

TEST_CASE("recomputation is read by its names, and by those that mean the same") {
  for (const Recompute recompute : kRecomputes) CHECK(recompute_from(name(recompute)) == recompute);
  CHECK(recompute_from("norm") == Recompute::kNone);
  CHECK(recompute_from("all") == Recompute::kFull);
  CHECK_FALSE(recompute_from("most"));
  Json json = sound();
  json["recompute"] = "all";
  CHECK(parse_strategy(json, "s.json").recompute == Recompute::kFull);
  json["recompute"] = "experts";
  CHECK(parse_strategy(json, "s.json").recompute == Recompute::kExperts);
  json["recompute"] = "most";
  CHECK(problems_of(json).size() == 1);
}
