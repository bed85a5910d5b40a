#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/json.h>
#include <piper/strategy/strategy.h>
#include <testing/strategy/contradiction_lines.h>

using namespace piper;
using namespace piper::strategy;

namespace {

model::Model mixture(int64_t layers, int64_t experts) {
  model::Model model;
  model.name = "tiny";
  model.layers.resize(layers);
  for (model::Layer& layer : model.layers) layer.feed_forward.num_experts = experts;
  return model;
}

Strategy of(Mesh mesh, std::vector<int64_t> layers) {
  Strategy s;
  s.mesh = mesh;
  s.layers_per_stage = std::move(layers);
  s.sequence = 16;
  s.micro_batch_sequences = 1;
  s.num_micro_batches = 2;
  s.global_batch_sequences = mesh.dp * 2;
  return s;
}

}  // namespace

TEST_CASE("a sound strategy contradicts nothing") {
  CHECK(lines_of(of({.pp = 2, .ep = 2, .dp = 4}, {3, 1}), mixture(4, 8)) == Lines{});
  CHECK(lines_of(of({.pp = 1, .ep = 1, .dp = 7}, {4}), mixture(4, 0)) == Lines{});
}

TEST_CASE("how keys and values travel is said where ranks share a sequence, and stays in a file") {
  const model::Model model = mixture(4, 8);
  Strategy s = of({.pp = 2, .ep = 2, .dp = 4}, {2, 2});
  s.context_exchange = ContextExchange::kGather;
  CHECK(lines_of(s, model) ==
        Lines{"'context_exchange' is gather with 'mesh.cp' 1, where no ranks share a sequence; "
              "allowed: a larger 'mesh.cp', or without it"});
  s.mesh.cp = 2;
  CHECK(lines_of(s, model) == Lines{});
  CHECK(!has_ring(s));
  CHECK(parse_strategy(to_json(s), "s.json").context_exchange == ContextExchange::kGather);
  s.context_exchange = ContextExchange::kRing;
  CHECK(has_ring(s));
  CHECK(!to_json(s).contains("context_exchange"));
  CHECK(has_ring(parse_strategy(to_json(s), "s.json")));
}

TEST_CASE("when gradients' sums start is said up to ZeRO 1, and stays in a file") {
  const model::Model model = mixture(4, 8);
  Strategy s = of({.pp = 2, .ep = 2, .dp = 4}, {2, 2});
  s.reduction_start = ReductionStart::kYielding;
  s.zero = 1;
  CHECK(lines_of(s, model) == Lines{});
  CHECK(parse_strategy(to_json(s), "s.json").reduction_start == ReductionStart::kYielding);
  s.zero = 2;
  CHECK(lines_of(s, model) ==
        Lines{"'reduction_start' is yielding with 'zero' 2, where gradients leave as soon as they "
              "are there; allowed: ready, or 'zero' 0 or 1"});
  s.reduction_start = ReductionStart::kReady;
  CHECK(!to_json(s).contains("reduction_start"));
}

TEST_CASE(
    "chunks of a mixture layer's tokens are no more than there are, and of rows that travel") {
  model::Model model = mixture(4, 8);
  for (model::Layer& layer : model.layers) layer.feed_forward.ffn = 4;
  Strategy s = of({.pp = 2, .ep = 2, .dp = 4}, {2, 2});
  s.moe_chunks = 4;
  CHECK(
      lines_of(s, model) ==
      Lines{"'moe_chunks' is 4 with 'moe_schedule' plain; allowed: 1, or 'moe_schedule' chunked"});
  s.moe_schedule = MoeSchedule::kChunked;
  CHECK(lines_of(s, model) == Lines{});
  s.moe_chunks = 17;  // of a sequence of 16
  CHECK(lines_of(s, model) ==
        Lines{"'moe_chunks' is 17; allowed: at most the 16 tokens of a micro-batch on a rank"});
  s.moe_chunks = 33;
  CHECK(lines_of(s, model) == Lines{"'moe_chunks' is 33; allowed: an integer from 1 to 32"});
  s.moe_chunks = 2;
  s.all_to_all = AllToAll::kHaloDedup;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_schedule' is chunked with 'all_to_all' halo-dedup; allowed: any other "
              "'all_to_all', or 'moe_schedule' plain"});
  s.all_to_all = AllToAll::kFlat;
  s.mesh.ep = 1;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_schedule' is chunked with 'mesh.ep' 1 and 'mesh.etp' 1, where no rows travel; "
              "allowed: plain"});
  s.mesh.etp = 2;
  CHECK(lines_of(s, model) == Lines{});
}

TEST_CASE(
    "groups of peers are no more than the ranks of an expert group, and are sent to straight") {
  model::Model model = mixture(4, 8);
  for (model::Layer& layer : model.layers) layer.feed_forward.ffn = 4;
  Strategy s = of({.pp = 2, .ep = 4, .dp = 4}, {2, 2});
  s.moe_schedule = MoeSchedule::kFasterMoe;
  s.moe_chunks = 4;
  CHECK(lines_of(s, model) == Lines{});
  s.moe_chunks = 5;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_chunks' is 5 with 'moe_schedule' fastermoe; allowed: at most as many groups as "
              "'mesh.ep' has ranks, 4"});
  s.moe_chunks = 2;
  s.all_to_all = AllToAll::kHalo;
  CHECK(lines_of(s, model) ==
        Lines{"'all_to_all' is halo with 'moe_schedule' fastermoe, which sends rows straight to "
              "each group of peers; allowed: flat, node-aware, naive, pairwise, windowed, or "
              "'moe_schedule' chunked"});
  s.all_to_all = AllToAll::kNodeAware;
  s.mesh.ep = 1;
  CHECK(
      lines_of(s, model) ==
      Lines{"'moe_schedule' is fastermoe with 'mesh.ep' 1 and 'mesh.etp' 1, where no rows travel; "
            "allowed: plain"});
  s.mesh.etp = 2;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_schedule' is fastermoe with 'mesh.ep' 1, where rows go to no peer; allowed: "
              "chunked"});
}

TEST_CASE(
    "rows are divided by ranks that hold the same tokens, and what is not executed is named") {
  using enum MoeSchedule;
  model::Model model = mixture(4, 8);
  for (model::Layer& layer : model.layers) {
    layer.feed_forward.ffn = 4;
    layer.attention.num_heads = 4;
  }
  Strategy s = of({.pp = 2, .ep = 2, .dp = 2, .tp = 2}, {2, 2});
  for (const MoeSchedule schedule : {kMontaO1, kMontaO2, kParmS2}) {
    s.moe_schedule = schedule;
    CHECK(lines_of(s, model) == Lines{});
    CHECK(divides_rows(s));
    CHECK(copies_of_rows(s) == 1);
  }
  s.sequence_parallel = true;
  s.moe_schedule = kMontaO1;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_schedule' is monta-o1 with 'sequence_parallel', where every token is routed "
              "once already; allowed: plain, or without 'sequence_parallel'"});
  CHECK(!divides_rows(s));
  s.sequence_parallel = false;
  s.moe_chunks = 3;
  CHECK(lines_of(s, model) == Lines{"'moe_chunks' is 3 with 'moe_schedule' monta-o1; allowed: "
                                    "1, or 'moe_schedule' monta-o2"});
  s.moe_schedule = kMontaO2;
  CHECK(lines_of(s, model) == Lines{});
  s.moe_chunks = 17;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_chunks' is 17; allowed: at most the 16 tokens of a micro-batch on a rank"});
  s.moe_chunks = 3;
  s.all_to_all = AllToAll::kHaloDedup;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_schedule' is monta-o2 with 'all_to_all' halo-dedup; allowed: any other "
              "'all_to_all', or 'moe_schedule' parm-s1"});
  s.all_to_all = AllToAll::kFlat;
  s.mesh.ep = 1;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_schedule' is monta-o2 with 'mesh.ep' 1 and 'mesh.etp' 1, where no rows travel; "
              "allowed: monta-o1"});
  s.moe_schedule = kParmS2;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_chunks' is 3 with 'mesh.ep' 1 and 'mesh.etp' 1, where no rows travel; "
              "allowed: 1"});
  s.moe_chunks = 1;
  CHECK(lines_of(s, model) == Lines{});
  s.moe_schedule = kMontaO3;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_schedule' is monta-o3: it is priced by `piper moe` alone, not executed; "
              "allowed: monta-o2"});
  s.moe_schedule = kParmBaseline;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_schedule' is parm-baseline with 'mesh.etp' 1, where no ranks share experts; "
              "allowed: plain, or etp of at least 2"});
  s.mesh.etp = 2;
  CHECK(lines_of(s, model) == Lines{});
  s.sequence_parallel = true;
  CHECK(lines_of(s, model) ==
        Lines{"'moe_schedule' is parm-baseline with 'sequence_parallel', where every token is "
              "routed once already; allowed: plain, or without 'sequence_parallel'"});
}

TEST_CASE("more stages than layers is named with what is allowed") {
  CHECK(lines_of(of({.pp = 3, .ep = 1, .dp = 1}, {1, 1, 1}), mixture(2, 8)) ==
        Lines{"'mesh.pp' is 3, but tiny has 2 layers; allowed: an integer from 1 to 2"});
}

TEST_CASE("layers per stage must sum to the model's layers") {
  CHECK(lines_of(of({.pp = 2, .ep = 1, .dp = 1}, {2, 3}), mixture(4, 8)) ==
        Lines{"'layers_per_stage' sums to 5; allowed: the 4 layers of tiny"});
  CHECK(lines_of(of({.pp = 2, .ep = 1, .dp = 1}, {0, 4}), mixture(4, 8)) ==
        Lines{"'layers_per_stage[0]' is 0; allowed: an integer from 1 to 1000000"});
}

TEST_CASE("expert-parallel degrees that do not fit the experts say which do") {
  CHECK(lines_of(of({.pp = 1, .ep = 3, .dp = 3}, {4}), mixture(4, 8)) ==
        Lines{"'mesh.ep' is 3; allowed: a divisor of the 8 experts of tiny (1, 2, 4, 8)"});
  CHECK(lines_of(of({.pp = 1, .ep = 16, .dp = 16}, {4}), mixture(4, 8)) ==
        Lines{"'mesh.ep' is 16: more ranks than the 8 experts of tiny; allowed: 1, 2, 4, 8 "
              "(further ranks hold "
              "replicas: a larger 'mesh.dp')"});
  CHECK(lines_of(of({.pp = 1, .ep = 2, .dp = 2}, {4}), mixture(4, 0)) ==
        Lines{"'mesh.ep' is 2, but tiny is dense (no experts to divide); allowed: 1"});
}

TEST_CASE("layers with different numbers of experts are each checked") {
  model::Model model = mixture(2, 8);
  model.layers[1].feed_forward.num_experts = 6;
  CHECK(lines_of(of({.pp = 1, .ep = 4, .dp = 4}, {2}), model).size() == 1);
  CHECK(lines_of(of({.pp = 1, .ep = 2, .dp = 2}, {2}), model).empty());
}

TEST_CASE("values that no file could hold are lines, not crashes") {
  Strategy s = of({.pp = 0, .ep = 0, .dp = -3}, {});
  s.num_micro_batches = INT64_MAX;
  CHECK(lines_of(s, mixture(2, 8)).size() == 4);
  s = of({.pp = 1'000'000, .ep = 1, .dp = 1'000'000}, {4});
  const Lines lines = lines_of(s, mixture(4, 8));
  REQUIRE_FALSE(lines.empty());
  CHECK(lines[0] == "'mesh.pp' x 'mesh.dp' is 1000000000000 ranks; allowed: at most 16777216");
}

TEST_CASE("several contradictions come together") {
  Strategy s = of({.pp = 2, .ep = 3, .dp = 4}, {1, 1});
  s.global_batch_sequences = 9;
  CHECK(lines_of(s, mixture(4, 8)).size() == 4);  // ep | dp, the batch, the layers, ep | experts
}

TEST_CASE("a model with learned positions bounds the sequence") {
  model::Model model = mixture(4, 8);
  model.learned_positions = 8;
  CHECK(lines_of(of({.pp = 1, .ep = 1, .dp = 1}, {4}), model) ==
        Lines{"'sequence' is 16; allowed: at most the 8 learned positions of tiny"});
}

TEST_CASE("modules of multi-token prediction need a sequence longer than they are many") {
  Strategy s = of({}, {4});
  s.mtp_depth = 5;
  CHECK(lines_of(s, mixture(4, 8)) == Lines{"'mtp_depth' is 5; allowed: an integer from 0 to 4"});
  s.mtp_depth = 3;
  s.sequence = 3;
  CHECK(lines_of(s, model::with_mtp(mixture(4, 8), 3)) ==
        Lines{"'mtp_depth' is 3; allowed: less than the 3 tokens of 'sequence'"});
  s.sequence = 4;
  CHECK(lines_of(s, model::with_mtp(mixture(4, 8), 3)).empty());
  CHECK(lines_of(s, mixture(4, 8)) == Lines{"'mtp_depth' is 3; allowed: 0, the modules of tiny"});
}

TEST_CASE("slots for copies of experts divide among the ranks of a group, up to all experts") {
  model::Model model = mixture(4, 8);
  for (model::Layer& layer : model.layers) layer.feed_forward.ffn = 4;
  Strategy s = of({.ep = 2, .dp = 4}, {4});
  for (const int64_t fits : {0, 2, 8}) {
    s.redundant_experts = fits;
    CHECK(lines_of(s, model) == Lines{});
  }
  s.redundant_experts = 3;
  CHECK(
      lines_of(s, model) ==
      Lines{"'redundant_experts' is 3; allowed: a multiple of 'mesh.ep' 2, as many on every rank"});
  s.redundant_experts = 10;
  CHECK(lines_of(s, model) ==
        Lines{"'redundant_experts' is 10; allowed: at most 8, when every rank has a copy of each "
              "expert of the others"});
  s.redundant_experts = -2;
  CHECK(lines_of(s, model).front() ==
        "'redundant_experts' is -2; allowed: an integer from 0 to 1000000");
  s.mesh.ep = 1;
  s.redundant_experts = 2;
  CHECK(lines_of(s, model) == Lines{"'redundant_experts' is 2 with 'mesh.ep' 1, where one rank "
                                    "holds all experts; allowed: 0"});
  s.mesh.ep = 2;
  CHECK(lines_of(s, mixture(4, 0)).back() ==
        "'redundant_experts' is 2, but tiny is dense (no experts); allowed: 0");
}

TEST_CASE("experts travel as residuals where their weights are sent once a step") {
  model::Model model = mixture(4, 8);
  model.hidden = 64;
  for (model::Layer& layer : model.layers) layer.feed_forward.ffn = 4;
  Strategy s = of({.ep = 2, .dp = 4}, {4});
  s.expert_compression = 50;
  const auto first = [&] { return lines_of(s, model).front(); };
  CHECK(first() ==
        "'expert_compression' is 50 with 'zero' 0, where experts' weights are not sent once a "
        "step; allowed: 1, or 'zero' 1 or 2");
  for (const int64_t zero : {1, 2}) {
    s.zero = zero;
    CAPTURE(fmt::format("{}", fmt::join(lines_of(s, model), "; ")));
    CHECK(lines_of(s, model) == Lines{});
  }
  s.mesh.ep = 4;
  CHECK(first() ==
        "'expert_compression' is 50 with one rank for each expert, which sends it to nobody; "
        "allowed: 1, or more ranks of a stage than 'mesh.ep' x 'mesh.etp'");
  s.mesh.ep = 2;
  s.redundant_experts = 2;
  CHECK(first() ==
        "'expert_compression' is 50 with copies of experts, which are sent whole; allowed: 1, or "
        "'redundant_experts' 0");
  s.redundant_experts = 0;
  for (const int64_t never : {0, 171}) {
    s.expert_compression = never;
    CHECK(first() ==
          fmt::format("'expert_compression' is {}; allowed: an integer from 1 to 170", never));
  }
  // Blocks of 16, of which one element is a twelfth in fp32.
  model.hidden = 2;
  s.expert_compression = 50;
  CHECK(first().find(
            "'expert_compression' is 50; allowed: at most 12, one element in blocks of 16") == 0);
  s.expert_compression = 12;
  CHECK(lines_of(s, model) == Lines{});
  s.expert_compression = 2;
  for (model::Layer& layer : model.layers) layer.feed_forward.ffn = 1;
  CHECK(first().find("cannot be divided among 2 ranks in blocks of 16; allowed: 1") !=
        std::string::npos);
  CHECK(lines_of(s, mixture(4, 0)).back() ==
        "'expert_compression' is 2, but tiny is dense (no experts); allowed: 1");
}

TEST_CASE("a contradiction says by its key which field is to change") {
  Strategy s = of({.pp = 2, .ep = 2, .dp = 4}, {0, 4});
  s.global_batch_sequences = 9;
  std::vector<std::string> keys;
  for (const Contradiction& c : contradictions(s, mixture(4, 8))) keys.push_back(c.key);
  CHECK(keys == Lines{"layers_per_stage[0]", "global_batch_sequences"});
  s = of({.pp = 1, .ep = 2, .dp = 4}, {4});
  s.expert_compression = 50;
  REQUIRE(contradictions(s).size() == 1);
  CHECK(contradictions(s).front().key == "expert_compression");
}

TEST_CASE("a contradiction names every field as the one who asks does") {
  const NameOfKey flag = [](std::string_view key) {
    return key == "mesh.ep" ? std::string("--ranks") : quoted(key);
  };
  Strategy s = of({.pp = 1, .ep = 3, .dp = 4}, {4});
  CHECK(texts_of(contradictions(s, flag)) ==
        Lines{"--ranks is 3; allowed: a divisor of 'mesh.dp' 4 (1, 2, 4)"});
  // A name that reads like a key stays the model's.
  model::Model model = mixture(4, 0);
  model.name = "'mesh.ep'";
  s = of({.pp = 1, .ep = 2, .dp = 2}, {4});
  CHECK(texts_of(contradictions(s, model, flag)) ==
        Lines{"--ranks is 2, but 'mesh.ep' is dense (no experts to divide); allowed: 1"});
}
