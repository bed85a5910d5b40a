#include <doctest/doctest.h>
#include <piper/base/json.h>
#include <piper/model/import.h>
#include <piper/strategy/runnable.h>

using namespace piper;
using namespace piper::strategy;

namespace {

Strategy wide(const model::Model& model) {
  return {.mesh = {.pp = 4, .ep = 8, .dp = 4, .vpp = 2, .tp = 4, .cp = 2},
          .layers_per_stage = even_split(model.num_layers(), 8),
          .schedule = PipelineSchedule::kInterleaved,
          .precision = Precision::kFp8,
          .sequence = 4096,
          .global_batch_sequences = 256,
          .micro_batch_sequences = 1,
          .num_micro_batches = 64,
          .zero = 1,
          .sequence_parallel = true};
}

}  // namespace

TEST_CASE("what a model's layers do not allow is named beside what the executor lacks") {
  const model::Model model = model::load_model("olmoe-1b-7b");
  Strategy s{.mesh = {.ep = 4, .dp = 2, .tp = 2},
             .layers_per_stage = even_split(model.num_layers(), 1),
             .precision = Precision::kBf16,
             .sequence = 4096,
             .global_batch_sequences = 8,
             .micro_batch_sequences = 1,
             .num_micro_batches = 4,
             .sequence_parallel = true};
  REQUIRE(contradictions(s, model).empty());
  CHECK(not_runnable(s).empty());
  CHECK(not_runnable(s, model) ==
        std::vector<std::string>{"'mesh.tp' is 2: layer 0: a norm over all heads of q and k needs "
                                 "them on one rank; allowed: 1"});
  CHECK(untrainable(model, s) == not_runnable(s, model));
  const Strategy near = nearest_runnable(s, model);
  CHECK(near.mesh.tp == 1);
  CHECK(untrainable(model, near).empty());
  s.mesh = {.dp = 2, .etp = 2, .tp = 2, .cp = 2};
  s.num_micro_batches = 4;
  s.sequence_parallel = false;
  s.moe_schedule = MoeSchedule::kParmBaseline;
  REQUIRE(contradictions(s, model).empty());
  CHECK(contradictions(nearest_runnable(s, model), model).empty());
  CHECK(untrainable(model, nearest_runnable(s, model)).empty());
  s.mesh = {.ep = 2, .dp = 4, .etp = 2};
  s.num_micro_batches = 2;
  s.all_to_all = AllToAll::kHaloDedup;
  REQUIRE(contradictions(s, model).empty());
  CHECK(contradictions(nearest_runnable(s, model), model).empty());
  CHECK(untrainable(model, nearest_runnable(s, model)).empty());
  // Groups of peers, of an expert group that becomes smaller; chunks of rows that ranks of tp
  // divide.
  s.all_to_all = AllToAll::kFlat;
  s.mesh = {.ep = 64, .dp = 64};
  s.global_batch_sequences = 32;
  s.num_micro_batches = 1;
  s.moe_schedule = MoeSchedule::kFasterMoe;
  s.moe_chunks = 32;
  s.precision = Precision::kFp8;  // so that there is something to change
  CHECK(contradictions(nearest_runnable(s, model), model).empty());
  CHECK(nearest_runnable(s, model).moe_chunks <= nearest_runnable(s, model).mesh.ep);
  s.mesh = {.ep = 2, .dp = 2, .tp = 2};
  s.moe_schedule = MoeSchedule::kMontaO2;
  s.moe_chunks = 4;
  s.global_batch_sequences = 8;
  s.num_micro_batches = 4;
  s.precision = Precision::kBf16;
  REQUIRE(contradictions(s, model).empty());
  CHECK(contradictions(nearest_runnable(s, model), model).empty());
  const model::Model sinks = model::load_model("gpt-oss-20b");
  CHECK(not_runnable(near, sinks).empty());
  CHECK_FALSE(untrainable(sinks, near).empty());
}

TEST_CASE("what the executor lacks is named, each thing once") {
  const model::Model model = model::load_model("mixtral-8x7b");
  const Strategy strategy = wide(model);
  CHECK(contradictions(strategy, model).empty());
  const std::vector<std::string> reasons = not_runnable(strategy);
  REQUIRE(reasons.size() == 1);
  CHECK(reasons.front() == "'precision' is fp8: it is priced, not executed");
  Strategy context = nearest_runnable(strategy, model);
  CHECK(context.mesh == strategy.mesh);  // cp stays
  CHECK(not_runnable(context).empty());
  context.capacity.factor = 1.25;  // ranks tell each other their choices
  CHECK(not_runnable(context).empty());
  Strategy wider = strategy;
  wider.mesh.cp = 1;
  wider.mesh.dp = 8;
  wider.num_micro_batches = 32;
  Strategy tensor = nearest_runnable(wider, model);
  tensor.sequence_parallel = false;
  CHECK(not_runnable(tensor).empty());
  tensor.sequence = 4095;
  REQUIRE(not_runnable(tensor).size() == 1);
  CHECK(not_runnable(tensor).front() ==
        "'mesh.tp' is 4 with 4095 tokens of a micro-batch: uneven shares of them are priced, not "
        "executed; allowed: a divisor");
  CHECK(nearest_runnable(tensor, model).mesh.tp == 1);
  tensor.sequence = 4096;
  // Tokens in place of their copies run where no two ranks route the same ones.
  tensor.all_to_all = AllToAll::kHaloDedup;
  REQUIRE(not_runnable(tensor).size() == 1);
  CHECK(not_runnable(tensor).front().starts_with(
      "'all_to_all' is halo-dedup beside 'mesh.tp' 4 without 'sequence_parallel'"));
  CHECK(nearest_runnable(tensor, model).all_to_all == AllToAll::kFlat);
  tensor.moe_schedule = MoeSchedule::kParmS1;
  CHECK(not_runnable(tensor).empty());
  tensor.all_to_all = AllToAll::kFlat;
  tensor.capacity.factor = 1.25;
  CHECK(not_runnable(tensor).empty());
  tensor.moe_schedule = MoeSchedule::kPlain;
  tensor.sequence_parallel = true;
  CHECK(not_runnable(tensor).empty());
  tensor.micro_batch_sequences = 4;
  CHECK(not_runnable(tensor).empty());
  // Experts whose matrices ranks share run, but not while tokens travel in place of copies.
  tensor.mesh.etp = 2;
  tensor.num_micro_batches = tensor.global_batch_sequences / tensor.mesh.dp / 4;
  REQUIRE(contradictions(tensor, model).empty());
  CHECK(not_runnable(tensor).empty());
  CHECK(to_json(nearest_runnable(tensor, model)) == to_json(tensor));
  tensor.all_to_all = AllToAll::kHaloDedup;
  REQUIRE(not_runnable(tensor).size() == 1);
  CHECK(not_runnable(tensor).front().starts_with("'all_to_all' is halo-dedup beside 'mesh.etp' 2"));
  const Strategy whole = nearest_runnable(tensor, model);
  CHECK(whole.mesh.etp == 1);
  CHECK(whole.mesh.ep == 8);
  CHECK(not_runnable(whole).empty());
}

TEST_CASE(
    "the nearest runnable strategy runs, on as many ranks, with the same batch where it divides") {
  const model::Model model = model::load_model("mixtral-8x7b");
  const Strategy strategy = wide(model);
  const Strategy near = nearest_runnable(strategy, model);
  CHECK(not_runnable(near).empty());
  CHECK(contradictions(near, model).empty());
  CHECK(near.mesh.world() == strategy.mesh.world());
  CHECK(near.global_batch_sequences == strategy.global_batch_sequences);
  CHECK(near.mesh.pp == 4);
  CHECK(near.mesh.ep == 8);
  CHECK(near.mesh.tp == 4);
  CHECK(to_json(nearest_runnable(near, model)) == to_json(near));
}

TEST_CASE("the nearest runnable strategy keeps the chunks of a schedule that runs") {
  const model::Model model = model::load_model("mixtral-8x7b");
  Strategy strategy = wide(model);
  strategy.global_batch_sequences = 64;
  strategy.num_micro_batches = 16;
  REQUIRE(contradictions(strategy, model).empty());
  strategy.mesh.tp = 8;
  strategy.mesh.cp = 1;
  strategy.sequence = 4095;  // so that tp is given up
  strategy.sequence_parallel = false;
  REQUIRE(contradictions(strategy, model).empty());
  // On 32 ranks a stage two micro-batches are left, and interleaved wants a multiple of four.
  const Strategy plain = nearest_runnable(strategy, model);
  CHECK(plain.mesh.vpp == 1);
  CHECK(plain.schedule == PipelineSchedule::k1F1B);
  CHECK(contradictions(plain, model).empty());
  strategy = wide(model);
  const Strategy shared = nearest_runnable(strategy, model);  // with tp, and ZeRO
  CHECK(shared.schedule == PipelineSchedule::kInterleaved);
  CHECK(shared.mesh.vpp == 2);
  CHECK(shared.zero == 1);
  strategy.mesh = {.pp = 4, .ep = 8, .dp = 16, .vpp = 2};
  strategy.sequence_parallel = false;
  strategy.num_micro_batches = 16;
  REQUIRE(contradictions(strategy, model).empty());
  const Strategy near = nearest_runnable(strategy, model);
  CHECK(near.schedule == PipelineSchedule::kInterleaved);
  CHECK(near.mesh.vpp == 2);
  CHECK(near.layers_per_stage == strategy.layers_per_stage);
  CHECK(not_runnable(near).empty());
}

TEST_CASE("sharded gradients and weights run, beside modules and copies of experts too") {
  const model::Model model = model::load_model("mixtral-8x7b");
  Strategy strategy = wide(model);
  strategy.precision = Precision::kBf16;
  strategy.zero = 2;
  CHECK(not_runnable(strategy).empty());
  CHECK(nearest_runnable(strategy, model).zero == 2);
  strategy.zero = 3;
  CHECK(not_runnable(strategy).empty());
  CHECK(nearest_runnable(strategy, model).zero == 3);
  strategy.zero = 2;
  strategy.redundant_experts = strategy.mesh.ep;
  CHECK(not_runnable(strategy).empty());
  strategy.zero = 3;
  strategy.placement = Placement::kPipelineInside;
  CHECK(not_runnable(strategy).empty());
  strategy.redundant_experts = 0;
  const model::Model with_modules = model::with_mtp(model, 1);
  strategy.zero = 2;
  strategy.mtp_depth = 1;
  strategy.mesh.cp = 1;
  strategy.mesh.dp = 8;
  strategy.num_micro_batches = 32;
  REQUIRE(contradictions(strategy, with_modules).empty());
  CHECK(not_runnable(strategy).empty());
  strategy.zero = 3;
  CHECK(not_runnable(strategy).empty());
}

TEST_CASE("a strategy with every axis is written and read back as it was") {
  const model::Model model = model::load_model("mixtral-8x7b");
  Strategy strategy = wide(model);
  strategy.offload = Offload::kOptimizer;
  strategy.placement = Placement::kPipelineInside;
  strategy.recompute_per_stage = {Recompute::kFull, Recompute::kNone, Recompute::kNone,
                                  Recompute::kExperts};
  const Json json = to_json(strategy);
  CHECK(json["mesh"]["edp"] == 4);
  CHECK(to_json(parse_strategy(json, "s.json")) == json);
}

TEST_CASE("contradictions of the further axes name what is allowed") {
  const model::Model model = model::load_model("mixtral-8x7b");
  const auto only = [&](auto change) {
    Strategy s = wide(model);
    change(s);
    const std::vector<Contradiction> found = contradictions(s, model);
    REQUIRE(found.size() == 1);
    return found.front().text;
  };
  CHECK(only([](Strategy& s) { s.mesh.etp = 7; }).starts_with("'mesh.ep' x 'mesh.etp' is 8 x 7"));
  CHECK(only([](Strategy& s) { s.moe_schedule = MoeSchedule::kParmS1; }) ==
        "'moe_schedule' is parm-s1 with 'sequence_parallel', where every token is routed once "
        "already; allowed: plain, or without 'sequence_parallel'");
  CHECK(only([](Strategy& s) {
          s.moe_schedule = MoeSchedule::kParmS1;
          s.sequence_parallel = false;
          s.mesh.tp = 1;
          s.mesh.cp = 8;
        }) ==
        "'moe_schedule' is parm-s1 with 'mesh.tp' 1, where no two ranks hold the same tokens; "
        "allowed: plain, or tp of at least 2");
  CHECK(only([](Strategy& s) { s.zero = 4; }) == "'zero' is 4; allowed: an integer from 0 to 3");
  CHECK(only([](Strategy& s) { s.schedule = PipelineSchedule::k1F1B; }) ==
        "'mesh.vpp' is 2 with schedule 1f1b; allowed: 1; interleaved and interleaved-pairs take "
        "more");
  CHECK(only([](Strategy& s) { s.sequence = 4100; }).find("'sequence'") != std::string::npos);
  CHECK(only([](Strategy& s) {
          s.recompute_per_stage = {Recompute::kFull};
        }).starts_with("'recompute_per_stage' has 1 entries"));
}
