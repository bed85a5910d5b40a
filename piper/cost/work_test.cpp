#include <doctest/doctest.h>
#include <piper/cost/layer_cost.h>
#include <piper/cost/work.h>
#include <piper/model/count.h>
#include <piper/model/import.h>
#include <testing/cost/example_model.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>

namespace piper::cost {
namespace {

using graph::Phase;
using schedule::SegmentKind;

double matrix_flops(const std::vector<Work>& list) {
  double flops = 0;
  for (const Work& w : list)
    if (w.kind == WorkKind::kGemm || w.kind == WorkKind::kAttention ||
        w.kind == WorkKind::kAttentionBackward)
      flops += w.amount * w.repetitions;
  return flops;
}

double step_matrix_flops(const model::Model& model, const SegmentWork& ends, int64_t ep) {
  double flops = 0;
  const auto add = [&](schedule::Segment segment, const SegmentWork& work) {
    flops += matrix_flops(segment_work(model, segment, Phase::kForward, work)) +
             matrix_flops(segment_work(model, segment, Phase::kBackward, work));
  };
  for (int32_t layer = 0; layer < model.num_layers(); ++layer) {
    const SegmentWork work = balanced_work(model, layer, ends.sequences, ends.sequence, ep, 4);
    add({SegmentKind::kAttention, layer}, work);
    if (model.layers[static_cast<size_t>(layer)].feed_forward.is_moe()) {
      for (const SegmentKind kind :
           {SegmentKind::kGate, SegmentKind::kExperts, SegmentKind::kUnpermute})
        add({kind, layer}, work);
      if (model.layers[static_cast<size_t>(layer)].feed_forward.has_shared())
        add({SegmentKind::kSharedExperts, layer}, work);
    } else {
      add({SegmentKind::kDenseMlp, layer}, work);
    }
  }
  add({SegmentKind::kHead, -1}, ends);
  return flops;
}

}  // namespace

TEST_CASE("the products of all segments are the FLOPs that MFU counts") {
  // These models have every kind of layer: grouped and latent attention, shared experts, dense
  // ones.
  for (const char* name : {"mixtral-8x7b", "deepseek-v3", "olmoe-1b-7b", "m10b-e16", "piper-10m"}) {
    CAPTURE(name);
    const model::Model model = model::load_model(name);
    const SegmentWork ends{.sequences = 2, .sequence = 512, .element_bytes = 4};
    const model::TokenFlops token = model::token_flops(model, 512);
    const double expected = (token.forward() + token.backward()) * 1024;
    CHECK(step_matrix_flops(model, ends, 1) == near(expected).epsilon(0.002));
    CHECK(step_matrix_flops(model, ends, 4) == near(expected).epsilon(0.002));
  }
}

// Every layer of another shape: what layers do differently from each other must reach the products.
model::Model layers_unlike_each_other() {
  model::Model m;
  m.hidden = 256;
  m.vocabulary = 1000;
  model::Layer layer;
  layer.feed_forward = {.ffn = 512};
  const model::Attention plain = {.num_heads = 8, .num_kv_heads = 4, .head_dim = 32};
  m.layers.assign(7, layer);
  for (model::Layer& l : m.layers) l.attention = plain;
  m.layers[0].attention.value_head_dim = 16;
  m.layers[1].attention.head_dim = 64;
  m.layers[1].attention.key_value = model::KeyValue::kValuesAreKeys;
  m.layers[2].attention.key_value = model::KeyValue::kOfEarlierLayer;
  m.layers[3].attention.head_gate = true;
  m.layers[4].attention.window = 128;
  m.layers[4].attention.num_heads = 16;
  m.layers[5].input_width = 48;
  m.layers[6].attention.num_kv_heads = 8;
  return m;
}

TEST_CASE("heads, values and keys that differ by layer reach the products of each layer") {
  const model::Model m = layers_unlike_each_other();
  for (int32_t layer = 0; layer < m.num_layers(); ++layer) {
    CAPTURE(layer);
    const SegmentWork work = balanced_work(m, layer, 2, 512, 1, 4);
    const model::TokenFlops token =
        model::layer_token_flops(m, m.layers[static_cast<size_t>(layer)], 512);
    const double forward = token.attention_projections + token.attention_scores + token.inputs;
    const schedule::Segment attention{SegmentKind::kAttention, layer};
    CHECK(matrix_flops(segment_work(m, attention, Phase::kForward, work)) == near(forward * 1024));
    CHECK(matrix_flops(segment_work(m, attention, Phase::kBackward, work)) ==
          near(2 * forward * 1024));
  }
}

TEST_CASE("experts are as many products as there are experts with rows, each with its own rows") {
  const model::Model model = example::mixture(1);
  SegmentWork work = balanced_work(model, 0, 2, 16, 1, 4);
  const auto gemms = [&] {
    std::vector<Work> list = segment_work(model, {SegmentKind::kExperts, 0}, Phase::kForward, work);
    std::erase_if(list, [](const Work& w) { return w.kind != WorkKind::kGemm; });
    return list;
  };
  REQUIRE(gemms().size() == 2);  // gate and up, down
  CHECK(gemms()[0].m == 16);     // 32 tokens, top 2 of 4
  CHECK(gemms()[0].n == 32);
  CHECK(gemms()[0].k == 8);
  CHECK(gemms()[0].repetitions == 4);

  work.largest_expert_rows = 64;  // one hot expert: the other three have none
  CHECK(gemms().size() == 2);
  CHECK(gemms()[0].m == 64);
  CHECK(gemms()[0].repetitions == 1);

  work.largest_expert_rows = 40;  // the others share 24
  CHECK(gemms()[2].m == 8);
  CHECK(gemms()[2].repetitions == 3);

  work.other_experts[0] = {1, 22};  // two of them have it all, one nearly
  work.other_experts[4] = {1, 2};
  CHECK(gemms()[2].m == 22);
  CHECK(gemms()[2].repetitions == 1);
  CHECK(gemms()[4].m == 2);

  work.received_rows = work.largest_expert_rows = 0;
  CHECK(segment_work(model, {SegmentKind::kExperts, 0}, Phase::kForward, work).empty());
}

TEST_CASE("the backward of a product is two products of shapes of their own") {
  const model::Model model = example::mixture(1);
  const SegmentWork work = balanced_work(model, 0, 2, 16, 1, 4);
  const std::vector<Work> list =
      segment_work(model, {SegmentKind::kGate, 0}, Phase::kBackward, work);
  std::vector<std::array<double, 3>> shapes;
  for (const Work& w : list)
    if (w.kind == WorkKind::kGemm) shapes.push_back({w.m, w.n, w.k});
  CHECK(shapes == std::vector<std::array<double, 3>>{{32, 8, 4}, {4, 8, 32}});
}

TEST_CASE("the optimizer touches 28 bytes a parameter in fp32") {
  // Gradient 4, moments 2 x 8, weight 2 x 4.
  const std::vector<Work> work =
      update_work(SegmentKind::kOptimizer, 10, strategy::Precision::kFp32);
  REQUIRE(work.size() == 1);
  CHECK(work[0].amount == 280);
}

TEST_CASE("a backward in two parts is the whole one, its weights' part GEMMs and what they read") {
  const model::Model model = model::load_model("deepseek-v2-lite");
  const SegmentWork work = balanced_work(model, 1, 1, 512, 2, 2);
  const auto flops = [&](SegmentKind kind, Phase phase) {
    const bool at_end = kind == SegmentKind::kEmbedding || kind == SegmentKind::kHead;
    return segment_work(model,
                        {kind, at_end                           ? -1
                               : kind == SegmentKind::kDenseMlp ? 0
                                                                : 1},
                        phase, work);
  };
  for (const SegmentKind kind :
       {SegmentKind::kEmbedding, SegmentKind::kAttention, SegmentKind::kDenseMlp,
        SegmentKind::kGate, SegmentKind::kSharedExperts, SegmentKind::kExperts,
        SegmentKind::kUnpermute, SegmentKind::kHead}) {
    CAPTURE(std::string(schedule::name(kind)));
    const std::vector<Work> whole = flops(kind, Phase::kBackward),
                            input = flops(kind, Phase::kBackwardInput),
                            weights = flops(kind, Phase::kBackwardWeights);
    // Rows from several peers are brought together by expert in both parts.
    CHECK(input.size() + weights.size() == whole.size() + (kind == SegmentKind::kExperts ? 1 : 0));
    CHECK(matrix_flops(input) + matrix_flops(weights) == doctest::Approx(matrix_flops(whole)));
    double all = 0, in_parts = 0;  // passes over elements: norms again, in one of the parts
    for (const Work& w : whole)
      if (w.kind == WorkKind::kElementWise) all += w.amount;
    for (const std::vector<Work>* part : {&input, &weights})
      for (const Work& w : *part)
        if (w.kind == WorkKind::kElementWise) in_parts += w.amount;
    CHECK(in_parts == doctest::Approx(all));
    for (const Work& w : weights)
      CHECK((w.kind == WorkKind::kGemm || w.kind == WorkKind::kElementWise ||
             w.kind == WorkKind::kCopy));
  }
  CHECK(matrix_flops(flops(SegmentKind::kExperts, Phase::kBackwardWeights)) ==
        near(matrix_flops(flops(SegmentKind::kExperts, Phase::kForward))));
  CHECK(flops(SegmentKind::kHead, Phase::kBackwardWeights).empty());
}

}  // namespace piper::cost
