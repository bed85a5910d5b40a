#include <fmt/format.h>
#include <piper/executor/clock.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/nn/aten.h>
#include <piper/nn/stage.h>
#include <piper/profile/reference_layers.h>

namespace piper::profile {
namespace {

using graph::Phase;
using schedule::SegmentKind;

constexpr int32_t kLayers = 3;

model::Model make_reference_model() {
  model::Model m;
  m.name = "reference layer";
  m.hidden = 192;
  m.vocabulary = 256;
  model::Layer layer;
  layer.attention.num_heads = 4;
  layer.attention.num_kv_heads = 2;
  layer.attention.head_dim = 48;
  layer.feed_forward.ffn = 320;
  layer.feed_forward.num_experts = 8;
  layer.feed_forward.top_k = 2;
  layer.feed_forward.normalise_top_k = true;
  m.layers.assign(kLayers, layer);
  return m;
}

strategy::Strategy one_rank(int64_t sequences, strategy::Precision precision) {
  strategy::Strategy s;
  s.layers_per_stage = {reference_model().num_layers()};
  s.precision = precision;
  s.sequence = kReferenceSequence;
  s.global_batch_sequences = s.micro_batch_sequences = sequences;
  s.num_micro_batches = 1;
  return s;
}

}  // namespace

const model::Model& reference_model() {
  static const model::Model model = make_reference_model();
  return model;
}

// Runs the whole model once on a stage: what each segment took, by kind.
class ReferenceLayers::Pass {
 public:
  Pass(strategy::Precision precision, int64_t sequences)
      : stage_(nn::make_stage(reference_model(), one_rank(sequences, precision), Rank(0),
                              {.dtype = executor::scalar_type(precision)})),
        tokens_(at::arange(sequences * kReferenceSequence)
                    .remainder(251)
                    .reshape({sequences, kReferenceSequence})),
        targets_(tokens_.reshape({-1}).roll(1)) {}

  SegmentSamples run() {
    seconds_.clear();
    at::Tensor x = timed(SegmentKind::kEmbedding, Phase::kForward,
                         [&] { return stage_->embedding_forward(tokens_); });
    for (int32_t l = 0; l < kLayers; ++l) x = forward(l, x);
    nn::Tape head;
    timed(SegmentKind::kHead, Phase::kForward,
          [&] { return stage_->head_forward(x, targets_, &head), at::Tensor(); });
    at::Tensor g = timed(SegmentKind::kHead, Phase::kBackward,
                         [&] { return stage_->head_backward(x, targets_, head); });
    for (int32_t l = kLayers; l-- > 0;) g = backward(l, g);
    timed(SegmentKind::kEmbedding, Phase::kBackward,
          [&] { return stage_->embedding_backward(tokens_, g), at::Tensor(); });
    stage_->take_statistics();
    return seconds_;
  }

 private:
  struct Layer {
    at::Tensor x, x1, rows, out;
    nn::Routing routing;
    nn::Tape attention, gate, experts;
  };

  template <class Call>
  at::Tensor timed(SegmentKind kind, Phase phase, const Call& call) {
    const double before = executor::now_seconds();
    at::Tensor result = call();
    seconds_[{kind, phase}].push_back(executor::now_seconds() - before);
    return result;
  }

  at::Tensor forward(int32_t l, at::Tensor x) {
    Layer& layer = layers_[l];
    layer = {};
    layer.x = std::move(x);
    layer.x1 = timed(SegmentKind::kAttention, Phase::kForward, [&] {
      return stage_->attention_forward(l, layer.x, kReferenceSequence, &layer.attention);
    });
    layer.rows = timed(SegmentKind::kGate, Phase::kForward, [&] {
      return stage_->gate_forward(l, layer.x1, kReferenceSequence, layer.routing, &layer.gate);
    });
    layer.out = timed(SegmentKind::kExperts, Phase::kForward, [&] {
      return stage_->experts_forward(l, layer.rows, layer.routing, &layer.experts);
    });
    return timed(SegmentKind::kUnpermute, Phase::kForward,
                 [&] { return stage_->merge_forward(l, layer.out, layer.routing, layer.x1); });
  }

  at::Tensor backward(int32_t l, const at::Tensor& gx) {
    Layer& layer = layers_[l];
    nn::Stage::MergeGradients merge;
    timed(SegmentKind::kUnpermute, Phase::kBackward, [&] {
      return merge = stage_->merge_backward(l, gx, layer.out, layer.routing), at::Tensor();
    });
    const at::Tensor g_rows = timed(SegmentKind::kExperts, Phase::kBackward, [&] {
      return stage_->experts_backward(l, merge.returned, layer.rows, layer.routing, layer.experts);
    });
    const at::Tensor gx1 = timed(SegmentKind::kGate, Phase::kBackward, [&] {
      return stage_->gate_backward(l, g_rows, merge.weights, gx, layer.x1, layer.routing,
                                   layer.gate);
    });
    at::Tensor g = timed(SegmentKind::kAttention, Phase::kBackward, [&] {
      return stage_->attention_backward(l, gx1, layer.x, layer.x1, kReferenceSequence,
                                        layer.attention);
    });
    layer = {};
    return g;
  }

  std::unique_ptr<nn::Stage> stage_;
  at::Tensor tokens_, targets_;
  Layer layers_[kLayers];
  SegmentSamples seconds_;
};

ReferenceLayers::ReferenceLayers(strategy::Precision precision, int64_t sequences)
    : pass_(std::make_unique<Pass>(precision, sequences)) {}

ReferenceLayers::~ReferenceLayers() = default;

SegmentSamples ReferenceLayers::run() { return pass_->run(); }

double reference_window_seconds(strategy::Precision precision, executor::Cores& cores) {
  constexpr int kRepeats = 2;
  std::unique_ptr<ReferenceLayers> layers;
  double sum = 0;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const executor::Cores::Hold core(cores);
    if (!layers) layers = std::make_unique<ReferenceLayers>(precision, kReferencePassSequences);
    const double start = executor::now_seconds();
    layers->run();
    if (repeat > 0) sum += executor::now_seconds() - start;
  }
  return sum / kRepeats;
}

std::string reference_pass_name(strategy::Precision precision) {
  return fmt::format("{}_reference_pass_seconds", strategy::name(precision));
}

}  // namespace piper::profile
