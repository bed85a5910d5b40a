// The parts that ranks which share a layer's matrices compute, beside the whole: outputs and input
// gradients add up to it; a gradient of a part of a matrix is that part of the whole's, and those
// of what every rank holds whole add up.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/nn/init.h>
#include <piper/nn/tensor_share.h>
#include <testing/nn/whole_step.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace piper::nn {
namespace {

using namespace testing;

constexpr int64_t kSequences = 2, kSequence = 8;

model::Model with_biases(model::Model model) {
  for (model::Layer& layer : model.layers) {
    model::Attention& a = layer.attention;
    a.query_bias = a.key_bias = a.value_bias = a.output_bias = true;
  }
  return model;
}

strategy::Strategy shared_by(const model::Model& model, int64_t ranks) {
  strategy::Strategy s = tiny_strategy(model, 1, 1, kSequence);
  s.mesh.tp = ranks;
  s.sequence_parallel = ranks > 1;
  return s;
}

std::unique_ptr<Stage> stage_of(const model::Model& model, int64_t ranks, int64_t rank) {
  auto stage =
      make_stage(model, shared_by(model, ranks), Rank(rank), {.dtype = at::kDouble, .seed = 3});
  for (const NamedPiece& piece : stage->named_pieces())  // norms and biases start all alike
    fill_normal(piece.value, 5, piece.name, 0.5, piece.part);
  stage->zero_gradients();
  return stage;
}

at::Tensor random(const model::Model& model, const char* name) {
  at::Tensor x = at::empty({kSequences * kSequence, model.hidden}, at::kDouble);
  fill_normal(x, 9, name, 1);
  return x;
}

struct Block {
  std::function<at::Tensor(Stage&, const at::Tensor& x, Tape& tape)> forward;
  std::function<at::Tensor(Stage&, const at::Tensor& g, const at::Tensor& x, Tape& tape)> backward;
};

const Block kAttention{[](Stage& s, const at::Tensor& x, Tape& tape) {
                         return s.attention_forward(0, x, kSequence, &tape);
                       },
                       [](Stage& s, const at::Tensor& g, const at::Tensor& x, Tape& tape) {
                         return s.attention_backward(0, g, x, x, kSequence, tape);
                       }};
const Block kNet{
    [](Stage& s, const at::Tensor& x, Tape& tape) { return s.dense_mlp_forward(0, x, &tape); },
    [](Stage& s, const at::Tensor& g, const at::Tensor& x, Tape& tape) {
      return s.dense_mlp_backward(0, g, x, tape);
    }};

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / (1e-30 + b.abs().max().item<double>());
}

void check_share(const model::Model& model, const Block& block, int64_t ranks) {
  CAPTURE(model.family);
  CAPTURE(ranks);
  const at::Tensor x = random(model, "x"), g = random(model, "g");
  const auto whole = stage_of(model, 1, 0);
  Tape tape;
  const at::Tensor out = block.forward(*whole, x, tape);
  const at::Tensor gx = block.backward(*whole, g, x, tape);
  std::map<std::string, at::Tensor> expected, found;
  for (const NamedPiece& piece : whole->named_pieces())
    if (piece.name.starts_with("model.layers.0.")) expected[piece.name] = piece.gradient;
  at::Tensor sum = at::zeros_like(out), g_sum = at::zeros_like(gx);
  bool cuts = false;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto stage = stage_of(model, ranks, rank);
    Tape part;
    sum += block.forward(*stage, x, part);
    g_sum += block.backward(*stage, g, x, part);
    for (const NamedPiece& piece : stage->named_pieces()) {
      const auto of_whole = expected.find(piece.name);
      if (of_whole == expected.end()) continue;
      at::Tensor& here = found[piece.name];
      if (!here.defined()) here = at::zeros_like(of_whole->second);
      if (!piece.part) {
        here += piece.gradient;
        continue;
      }
      here.narrow(piece.part->dim, piece.part->first, piece.part->count) += piece.gradient;
      cuts = true;
    }
  }
  CHECK(cuts);
  CHECK(relative_difference(sum, out) < 1e-12);
  CHECK(relative_difference(g_sum, gx) < 1e-12);
  CHECK(found.size() == expected.size());
  for (const auto& [name, gradient] : expected) {
    CAPTURE(name);
    CHECK(relative_difference(found[name], gradient) < 1e-11);
  }
}

TEST_CASE(
    "attention over 2 and 4 ranks, also with fewer key heads than ranks, adds up to the whole") {
  for (const int64_t ranks : {2, 4}) {
    check_share(tiny_model("mixtral"), kAttention, ranks);
    check_share(tiny_model("qwen3_moe"), kAttention, ranks);
    check_share(with_biases(tiny_model("mixtral")), kAttention, ranks);
    check_share(tiny_model("deepseek_v3"), kAttention, ranks);
  }
}

TEST_CASE("a dense net over 2 and 4 ranks adds up to the whole") {
  model::Model model = tiny_model("llama");
  for (model::Layer& layer : model.layers) layer.feed_forward.ffn = 12;
  for (const int64_t ranks : {2, 4}) check_share(model, kNet, ranks);
}

TEST_CASE("tokens are dealt in order") {
  const TensorShare share{.index = 3, .count = 4};
  CHECK(at::equal(share.own(at::arange(8)), at::arange(6, 8)));
}

TEST_CASE("what cannot be dealt to the ranks is named with what can") {
  const auto said = [](const model::Model& model, int64_t ranks) -> std::string {
    try {
      make_stage(model, shared_by(model, ranks), Rank(0), {});
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "";
  };
  CHECK(said(tiny_model("mixtral"), 3)
            .find("'mesh.tp' is 3: layer 0: 4 heads with 2 of keys over 3 "
                  "ranks; allowed: 1, 2, 4") != std::string::npos);
  CHECK(said(tiny_model("olmoe"), 2).find("norm over all heads") != std::string::npos);
  CHECK(said(tiny_model("mixtral"), 2).empty());
}

}  // namespace
}  // namespace piper::nn
