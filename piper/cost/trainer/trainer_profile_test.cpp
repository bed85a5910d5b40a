#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cost/trainer/trainer_profile.h>

using namespace piper;
using namespace piper::cost;

TEST_CASE("every built-in trainer reads, and a higher ZeRO stage never leaves more on every rank") {
  for (const std::string& name : builtin_trainers()) {
    CAPTURE(name);
    const TrainerProfile s = load_trainer(name);
    CHECK(s.name == name);
    CHECK(s.state_alone >= 16);
    CHECK(s.state[0].sharded == 0);
    for (size_t zero = 1; zero < 4; ++zero) {
      CHECK(s.state[zero].replicated < s.state[zero - 1].replicated);
      CHECK(s.state[zero].total(1) >= s.state_alone - 2);
    }
  }
}

TEST_CASE("what a trainer runs is read word by word, and a wrong word is refused") {
  const Offers megatron = load_trainer("megatron").offers;
  CHECK(megatron.has(strategy::PipelineSchedule::kInterleaved, 2));
  CHECK(megatron.has(strategy::PipelineSchedule::kInterleavedPairs, 2));
  CHECK(megatron.has(strategy::PipelineSchedule::k1F1BPairs, 1));
  CHECK_FALSE(megatron.has(strategy::PipelineSchedule::k1F1BPairs, 2));
  CHECK_FALSE(megatron.has(strategy::PipelineSchedule::kDualPipeV, 2));
  CHECK_FALSE(megatron.has(strategy::PipelineSchedule::kGPipe, 2));
  CHECK(megatron.has(strategy::PipelineSchedule::kGPipe, 1));
  CHECK(megatron.has_zero(1, 2));
  CHECK_FALSE(megatron.has_zero(2, 2));
  CHECK_FALSE(megatron.recompute_by_stage);
  const Offers titan = load_trainer("torchtitan").offers;
  CHECK(titan.has_expert_tensor(4, 4));
  CHECK_FALSE(titan.has_expert_tensor(2, 4));
  const Offers deepspeed = load_trainer("deepspeed").offers;
  CHECK(deepspeed.has_zero(3, 1));
  CHECK_FALSE(deepspeed.has_zero(2, 4));
  CHECK(load_trainer("piper").offers.has_expert_tensor(2, 4));
  Json own = parse_json(R"({"name": "own", "runs": {"schedules": ["1f1b", "gpype"], "zero": [4]}})",
                        "test");
  try {
    parse_trainer(own, "own.json");
    CHECK(false);
  } catch (const InvalidInput& error) {
    const std::string said = error.what();
    CAPTURE(said);
    CHECK(said.find("runs.schedules") != std::string::npos);
    CHECK(said.find("gpype") != std::string::npos);
    CHECK(said.find("runs.zero") != std::string::npos);
  }
}
