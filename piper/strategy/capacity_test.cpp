#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/strategy/strategy.h>
#include <testing/strategy/contradiction_lines.h>

using namespace piper;
using namespace piper::strategy;

namespace {

Json sound_with(const char* more) {
  return parse_json(std::string(R"({"mesh": {"pp": 1, "ep": 1, "dp": 1}, "layers_per_stage": [2],
    "schedule": "1f1b", "recompute": "none", "precision": "fp32", "sequence": 16,
    "global_batch_sequences": 1, "micro_batch_sequences": 1, "num_micro_batches": 1)") +
                        more + "}",
                    "s.json");
}

std::vector<std::string> capacity_problems(const char* more) {
  try {
    parse_strategy(sound_with(more), "s.json");
  } catch (const InvalidInput& e) {
    return e.problems();
  }
  return {};
}

}  // namespace

TEST_CASE(
    "a capacity is the even share times the factor, rounded up, and never beyond the sequence") {
  CHECK(expert_capacity(1, 16, 2, 8) == 4);
  CHECK(expert_capacity(1.25, 16, 2, 8) == 5);
  CHECK(expert_capacity(1.26, 16, 2, 8) == 6);
  CHECK(expert_capacity(1, 10, 1, 3) == 4);      // 3.33
  CHECK(expert_capacity(0.01, 16, 2, 8) == 1);   // never none
  CHECK(expert_capacity(1000, 16, 2, 8) == 16);  // every token
  CHECK(expert_capacity(0, 16, 2, 8) == 16);     // dropless
  // 1.1 x 50 is 55.000000000000007 in binary.
  CHECK(expert_capacity(1.1, 100, 2, 4) == 55);
}

TEST_CASE("a strategy without a capacity is dropless, and is written without one") {
  const Strategy s = parse_strategy(sound_with(""), "s.json");
  CHECK_FALSE(s.capacity.is_limited());
  CHECK_FALSE(to_json(s).contains("capacity_factor"));
  CHECK_FALSE(to_json(s).contains("drop"));
}

TEST_CASE("a capacity is read and written as it was read") {
  const Strategy s =
      parse_strategy(sound_with(R"(, "capacity_factor": 1.25, "drop": "position")"), "s.json");
  CHECK(s.capacity == Capacity{.factor = 1.25, .drop = Drop::kPosition});
  CHECK(to_json(s)["capacity_factor"] == 1.25);
  CHECK(to_json(s)["drop"] == "position");
  CHECK(parse_strategy(to_json(s), "again").capacity == s.capacity);
}

TEST_CASE("a padded capacity is written, and refused where rows of a sequence are not one rank's") {
  Strategy s = parse_strategy(
      sound_with(R"(, "capacity_factor": 1.25, "drop": "position", "pad_to_capacity": true)"),
      "s.json");
  CHECK(s.capacity.pads);
  CHECK(to_json(s)["pad_to_capacity"] == true);
  CHECK(parse_strategy(to_json(s), "again").capacity == s.capacity);
  CHECK(capacity_problems(R"(, "pad_to_capacity": true)") ==
        Lines{"s.json: 'pad_to_capacity' is given without 'capacity_factor'; allowed: both or "
              "neither"});
  s.mesh.tp = 2;
  CHECK(refusal_of_padding(s).empty());
  s.sequence_parallel = true;
  CHECK(refusal_of_padding(s).starts_with("where ranks share the tokens"));
  s.mesh = {.ep = 2, .dp = 2, .cp = 2};
  CHECK(refusal_of_padding(s).starts_with("where ranks share the tokens"));
  s.mesh.cp = 1;
  CHECK(refusal_of_padding(s).empty());
  s.redundant_experts = 2;
  CHECK(refusal_of_padding(s).starts_with("with copies of experts"));
  s.redundant_experts = 0;
  s.all_to_all = AllToAll::kHaloDedup;
  CHECK(refusal_of_padding(s).starts_with("with 'all_to_all' halo-dedup"));
  s.moe_schedule = MoeSchedule::kChunked;
  CHECK(refusal_of_padding(s).starts_with("with 'moe_schedule' chunked"));
}

TEST_CASE("padding beyond all tokens of a sequence is refused") {
  model::Model model;
  model.name = "tiny";
  model.layers.resize(2);
  model.layers[1].feed_forward.num_experts = 8;
  model.layers[1].feed_forward.top_k = 2;
  Strategy s = parse_strategy(
      sound_with(R"(, "capacity_factor": 4, "drop": "position", "pad_to_capacity": true)"),
      "s.json");
  CHECK(lines_of(s, model) == Lines{});
  s.capacity.factor = 4.1;
  CHECK(lines_of(s, model) ==
        Lines{"'pad_to_capacity' is given with 'capacity_factor' 4.1, more than all tokens of a "
              "sequence; allowed: at most the experts over top_k, 8 over 2"});
  s.capacity.pads = false;
  CHECK(lines_of(s, model) == Lines{});
}

TEST_CASE("a capacity that is none is refused") {
  CHECK(capacity_problems(R"(, "capacity_factor": 0, "drop": "position")") ==
        Lines{"s.json: 'capacity_factor' is 0; allowed: a number from 0.01 to 1000"});
  CHECK(capacity_problems(R"(, "capacity_factor": 1.25)") == Lines{"s.json: 'drop' is missing"});
  CHECK(capacity_problems(R"(, "capacity_factor": 2, "drop": "probs")") ==
        Lines{"s.json: 'drop' is 'probs'; allowed: probability, position"});
  CHECK(capacity_problems(R"(, "drop": "position")") ==
        Lines{"s.json: 'drop' is given without 'capacity_factor'; allowed: both or neither"});
}

TEST_CASE("a dense model has no experts with a capacity") {
  model::Model dense;
  dense.name = "tiny";
  dense.layers.resize(2);
  Strategy s = parse_strategy(sound_with(""), "s.json");
  CHECK(lines_of(s, dense) == Lines{});
  s.capacity.factor = 1.5;
  CHECK(lines_of(s, dense) ==
        Lines{"'capacity_factor' is 1.5, but tiny is dense (no experts); allowed: none"});
  dense.layers[1].feed_forward.num_experts = 4;
  CHECK(lines_of(s, dense) == Lines{});
  s.capacity.factor = -1;
  CHECK(lines_of(s, dense) ==
        Lines{"'capacity_factor' is -1; allowed: a number from 0.01 to 1000"});
}
