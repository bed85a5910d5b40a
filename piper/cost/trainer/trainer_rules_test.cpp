#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/cost/trainer/trainer_rules.h>
#include <piper/model/import.h>

#include <set>
#include <string>

using namespace piper;
using namespace piper::cost;
using strategy::Strategy;

namespace {

TrainerRules rules_of(const std::string& list) {
  return parse_rules(
      parse_json(fmt::format(R"({{"name": "t", "software": "T", "commit": "c", "date": "d",
                                  "rules": [{}]}})",
                             list),
                 "rules.json"),
      "rules.json");
}

// All lines of what is wrong with them; "" for nothing.
std::string complaint(const std::string& list) {
  try {
    rules_of(list);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

struct RulesWorld {
  model::Model model = model::load_model("mixtral-8x7b");
  cluster::Cluster machine = cluster::load_cluster("dgx-h100");
  TrainerProfile trainer = load_trainer("megatron");
  Strategy strategy{.mesh = {.ep = 8, .dp = 8},
                    .precision = strategy::Precision::kBf16,
                    .sequence = 4096,
                    .global_batch_sequences = 64,
                    .micro_batch_sequences = 1,
                    .num_micro_batches = 8};

  Known known() const { return {&model, &strategy, &machine, &trainer}; }
  Ruling ruled() const { return rule(*trainer.rules, known()); }
};

bool says(const std::vector<std::string>& lines, const std::string& what) {
  for (const std::string& line : lines)
    if (line.find(what) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("a rule file that contradicts itself is refused in one clear line") {
  const auto one = [](const std::string& list, const std::string& line) {
    CAPTURE(list);
    CHECK(complaint(list) == "rules.json: " + line);
  };
  const std::string forbids =
      R"({"name": "a", "source": "x", "when": {"tp": {"above": 1}}, "forbids": "tp {tp}"})";
  CHECK(complaint(forbids).empty());
  one(forbids +
          R"(, {"name": "b", "source": "x", "when": {"tp": {"above": 1}}, "wants": {"flags": {"--f": ""}}})",
      "'rules[1]' 'b' allows what rules[0] 'a' forbids, under the same conditions");
  one(forbids +
          R"(, {"name": "b", "source": "x", "when": {"tp": {"above": 1}}, "forbids": "tp {tp}"})",
      "'rules[1]' 'b' says what rules[0] 'a' says");
  one(forbids + R"(, {"name": "a", "source": "x", "when": {"cp": 2}, "forbids": "cp"})",
      "'rules[1]' 'a' has the name of rules[0] 'a'");
  const std::string wants = R"({"name": "a", "source": "x", "when": {"tp": {"above": 1}},
                                "wants": {"environment": {"N": "1"}}})";
  one(wants +
          R"(, {"name": "b", "source": "x", "when": {"cp": {"above": 1}}, "wants": {"environment": {"N": "32"}}})",
      "'rules[1]' 'b' wants another value of N than rules[0] 'a', and both may hold");
  // They never hold together.
  CHECK(
      complaint(
          wants +
          R"(, {"name": "b", "source": "x", "when": {"tp": 1}, "wants": {"environment": {"N": "32"}}})")
          .empty());
  one(R"({"name": "a", "source": "x", "when": {"sequence_paralel": true}, "forbids": "no"})",
      "'rules[0].when.sequence_paralel' is no fact; did you mean 'sequence_parallel'?");
  one(R"({"name": "a", "source": "x", "when": {}, "forbids": "no"})",
      "'rules[0].when' is empty; allowed: a condition or more");
  one(R"({"name": "a", "source": "x", "when": {"tp": 2}})",
      "'rules[0]' has none of forbids, warns and wants; allowed: one of them");
  one(R"({"name": "a", "source": "x", "when": {"tp": 2}, "forbids": "no", "warns": "well"})",
      "'rules[0]' has several of forbids, warns and wants; allowed: one of them");
  one(R"({"name": "a", "source": "x", "when": {"tp": {"above": 4, "below": 5}}, "warns": "w"})",
      "'rules[0]' 'a' can never hold");
  one(R"({"name": "a", "source": "x", "when": {"recompute": "ful"}, "warns": "w"})",
      "'rules[0].when.recompute' is \"ful\"; allowed: none, attention, experts, "
      "attention+experts, full");
  one(R"({"name": "a", "source": "x", "when": {"tp": {"over": 4}}, "warns": "w"})",
      "'rules[0].when.tp' has 'over'; allowed: not, above, below, multiple_of, not_multiple_of, "
      "divisor_of, not_divisor_of");
  one(R"({"name": "a", "source": "x", "when": {"--f": true}, "warns": "w"})",
      "'rules[0]' 'a' asks for --f, which no rule before it wants");
  one(R"({"name": "a", "source": "x", "when": {"tp": 2}, "warns": "{recompue}"})",
      "'rules[0].warns' speaks of {recompue}, which is no fact; did you mean 'recompute'?");
  one("", "'rules' is empty; allowed: a rule or more");
}

TEST_CASE("a profile names its rules, and an unknown name is refused") {
  for (const std::string& name : builtin_trainers()) {
    CAPTURE(name);
    const TrainerProfile trainer = load_trainer(name);
    if (name.starts_with("megatron")) {
      REQUIRE(trainer.rules != nullptr);
      CHECK(trainer.rules->name == "megatron-lm");
      CHECK(trainer.rules->commit == "d98e8a64");
    }
  }
  CHECK_THROWS_WITH_AS(load_rules("megatron-ml"), doctest::Contains("did you mean 'megatron-lm'?"),
                       InvalidInput);
}

TEST_CASE("facts have names of their own, and words for each value") {
  RulesWorld world;
  std::set<std::string> names;
  for (const Fact& fact : facts()) {
    CAPTURE(std::string(fact.name));
    CHECK(names.insert(fact.name).second);
    CHECK((fact.kind == Fact::Kind::kWord) == (fact.words != nullptr));
    CHECK_FALSE(fact.text_of(fact.read(world.known())).empty());
  }
  CHECK(compute_capability("H100 SXM") == 90);
  CHECK(compute_capability("GB200") == 100);
  CHECK(compute_capability("MI250X GCD") == 0);
}

TEST_CASE("Megatron: what must stand beside what") {
  RulesWorld world;
  CHECK(world.ruled().environment.empty());
  world.strategy.offload = strategy::Offload::kOptimizer;
  CHECK(says(world.ruled().forbids, "offload optimizer with zero 0"));
  world.strategy.zero = 1;
  CHECK(world.ruled().forbids.empty());
  CHECK(world.ruled().flags.contains("--use-precision-aware-optimizer"));
  CHECK(world.ruled().flags.contains("--use-distributed-optimizer"));

  world.strategy.mesh = {.ep = 8, .dp = 4, .tp = 2};
  CHECK(says(world.ruled().forbids, "tp 2 without sequence parallelism"));
  world.strategy.sequence_parallel = true;
  CHECK(world.ruled().forbids.empty());
  CHECK(world.ruled().environment.at("CUDA_DEVICE_MAX_CONNECTIONS") == "1");
  world.machine = cluster::load_cluster("b200");
  CHECK(world.ruled().environment.empty());
  world.machine = cluster::load_cluster("dgx-h100");
  world.strategy.schedule = strategy::PipelineSchedule::k1F1BPairs;
  CHECK(world.ruled().flags.contains("--overlap-moe-expert-parallel-comm"));
  CHECK(world.ruled().environment.at("CUDA_DEVICE_MAX_CONNECTIONS") == "32");
  CHECK(says(world.ruled().warns, "before Blackwell"));
  world.strategy.recompute = strategy::Recompute::kFull;
  CHECK(says(world.ruled().forbids, "under full recomputation"));
  CHECK_FALSE(world.ruled().flags.contains("--overlap-moe-expert-parallel-comm"));
}

TEST_CASE("Megatron: rules of the router") {
  RulesWorld world;
  for (model::Layer& layer : world.model.layers) layer.feed_forward.selection_bias = true;
  CHECK(says(world.ruled().forbids, "beside softmax scores"));
  for (model::Layer& layer : world.model.layers) {
    layer.feed_forward.selection_bias = false;
    layer.feed_forward.top_k = 1;
  }
  CHECK(world.ruled().forbids.empty());
  CHECK(world.ruled().flags.contains("--moe-router-pre-softmax"));
  CHECK(says(world.ruled().warns, "normalises to 1"));
}

TEST_CASE("torchtitan: more than two chunks a rank have to follow from the layers of one") {
  RulesWorld world;  // 32 layers
  world.trainer = load_trainer("torchtitan");
  Strategy& s = world.strategy;
  s.schedule = strategy::PipelineSchedule::kInterleaved;
  const auto forbids = [&](int64_t vpp) {
    s.mesh = {.pp = 4, .ep = 2, .dp = 2, .vpp = vpp};
    return says(world.ruled().forbids, "torchtitan infers the chunks");
  };
  CHECK_FALSE(forbids(2));
  CHECK_FALSE(forbids(4));
  CHECK(forbids(5));  // 2 layers a stage make 16 of them, 1 makes 32
  CHECK(forbids(3));  // 3 make 11
}

// The search asks in steps what rule() answers at once.
TEST_CASE("what a search is told in steps is what rules say of the whole") {
  RulesWorld world;
  const Forbidden forbidden(*world.trainer.rules, world.known());
  const auto in_steps = [&] {
    for (size_t i = 0; i <= static_cast<size_t>(Decided::kLast); ++i)
      if (forbidden.at(static_cast<Decided>(i), world.strategy)) return true;
    return false;
  };
  int64_t num_forbidden = 0, num_allowed = 0;
  Strategy& s = world.strategy;
  for (s.mesh.pp = 1; s.mesh.pp <= 4; s.mesh.pp *= 2)
    for (s.mesh.tp = 1; s.mesh.tp <= 16; s.mesh.tp *= 4)
      for (s.mesh.etp = 1; s.mesh.etp <= 2; ++s.mesh.etp)
        for (s.mesh.vpp = 1; s.mesh.vpp <= 2; ++s.mesh.vpp)
          for (const bool sp : {false, true})
            for (const auto schedule :
                 {strategy::PipelineSchedule::k1F1B, strategy::PipelineSchedule::kInterleavedPairs})
              for (const auto recompute : {strategy::Recompute::kNone, strategy::Recompute::kFull})
                for (s.zero = 0; s.zero <= 1; ++s.zero)
                  for (const auto offload :
                       {strategy::Offload::kNone, strategy::Offload::kOptimizer})
                    for (const auto placement : strategy::kPlacements) {
                      s.sequence_parallel = sp;
                      s.schedule = schedule;
                      s.recompute = recompute;
                      s.offload = offload;
                      s.placement = placement;
                      const bool refused = !world.ruled().forbids.empty();
                      CHECK(in_steps() == refused);
                      ++(refused ? num_forbidden : num_allowed);
                    }
  CHECK(num_forbidden > 100);
  CHECK(num_allowed > 100);
}
