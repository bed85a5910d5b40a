#include <fmt/format.h>
#include <piper/executor/clock.h>
#include <piper/executor/device_streams.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/nn/aten.h>
#include <piper/nn/stage.h>
#include <piper/profile/reference_layers.h>

#include <utility>

namespace piper::profile {
namespace {

using graph::Phase;
using schedule::SegmentKind;

constexpr int32_t kLayers = 3;

Reference make_reference(int64_t hidden, int64_t head_dim, int64_t ffn, int64_t vocabulary,
                         int64_t sequence) {
  Reference reference{.model = {}, .sequence = sequence};
  model::Model& m = reference.model;
  m.name = "reference layer";
  m.hidden = hidden;
  m.vocabulary = vocabulary;
  model::Layer layer;
  layer.attention.num_heads = hidden / head_dim;
  layer.attention.num_kv_heads = layer.attention.num_heads / 2;
  layer.attention.head_dim = head_dim;
  layer.feed_forward.ffn = ffn;
  layer.feed_forward.num_experts = 8;
  layer.feed_forward.top_k = 2;
  layer.feed_forward.normalise_top_k = true;
  m.layers.assign(kLayers, layer);
  return reference;
}

strategy::Strategy one_rank(const Reference& reference, int64_t sequences,
                            strategy::Precision precision) {
  strategy::Strategy s;
  s.layers_per_stage = {reference.model.num_layers()};
  s.precision = precision;
  s.sequence = reference.sequence;
  s.global_batch_sequences = s.micro_batch_sequences = sequences;
  s.num_micro_batches = 1;
  return s;
}

}  // namespace

const Reference& reference_for(const BenchDevice& device) {
  static const Reference small = make_reference(192, 48, 320, 256, 128);
  static const Reference large = make_reference(2048, 128, 1408, 32000, 2048);
  return device.is_cpu() ? small : large;
}

// Runs the whole model once on a stage: what each segment took, by kind.
class ReferenceLayers::Pass {
 public:
  Pass(const Reference& reference, strategy::Precision precision, int64_t sequences,
       const BenchDevice& device)
      : streams_(device.device),
        sequence_(reference.sequence),
        stage_(
            nn::make_stage(reference.model, one_rank(reference, sequences, precision), Rank(0),
                           {.dtype = executor::scalar_type(precision), .device = device.device})),
        tokens_(at::arange(sequences * sequence_)
                    .remainder(251)
                    .reshape({sequences, sequence_})
                    .to(device.device)),
        targets_(tokens_.reshape({-1}).roll(1)) {}

  SegmentSamples run() {
    streams_.start();
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
    return seconds();
  }

 private:
  struct Layer {
    at::Tensor x, x1, rows, out;
    nn::Routing routing;
    nn::Tape attention, gate, experts;
  };

  template <class Call>
  at::Tensor timed(SegmentKind kind, Phase phase, const Call& call) {
    const Moment before = now();
    at::Tensor result = call();
    spans_.push_back({{kind, phase}, before, now()});
    return result;
  }

  // On the host's clock, or in the device's stream.
  struct Moment {
    double seconds = 0;
    executor::DeviceEvent event = nullptr;
  };
  struct Span {
    SegmentKey key;
    Moment first, last;
  };
  Moment now() const {
    if (streams_.is_device())
      return {.event = streams_.record(graph::Stream::kCompute, /*timed=*/true)};
    return {.seconds = executor::now_seconds()};
  }
  // Returns the seconds of all spans since the last call, once what they measure is done.
  SegmentSamples seconds() {
    streams_.wait_for_all();
    SegmentSamples samples;
    for (const Span& span : std::exchange(spans_, {}))
      samples[span.key].push_back(streams_.is_device() ? executor::DeviceStreams::seconds_between(
                                                             span.first.event, span.last.event)
                                                       : span.last.seconds - span.first.seconds);
    return samples;
  }

  at::Tensor forward(int32_t l, at::Tensor x) {
    Layer& layer = layers_[l];
    layer = {};
    layer.x = std::move(x);
    layer.x1 = timed(SegmentKind::kAttention, Phase::kForward, [&] {
      return stage_->attention_forward(l, layer.x, sequence_, &layer.attention);
    });
    layer.rows = timed(SegmentKind::kGate, Phase::kForward, [&] {
      return stage_->gate_forward(l, layer.x1, sequence_, layer.routing, &layer.gate);
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
      return stage_->attention_backward(l, gx1, layer.x, layer.x1, sequence_, layer.attention);
    });
    layer = {};
    return g;
  }

  executor::DeviceStreams streams_;
  int64_t sequence_;
  std::unique_ptr<nn::Stage> stage_;
  at::Tensor tokens_, targets_;
  Layer layers_[kLayers];
  std::vector<Span> spans_;
};

ReferenceLayers::ReferenceLayers(const Reference& reference, strategy::Precision precision,
                                 int64_t sequences, const BenchDevice& device)
    : pass_(std::make_unique<Pass>(reference, precision, sequences, device)) {}

ReferenceLayers::~ReferenceLayers() = default;

SegmentSamples ReferenceLayers::run() { return pass_->run(); }

double reference_window_seconds(strategy::Precision precision, executor::Cores& cores) {
  constexpr int kRepeats = 2;
  std::unique_ptr<ReferenceLayers> layers;
  double sum = 0;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const executor::Cores::Hold core(cores);
    if (!layers)
      layers =
          std::make_unique<ReferenceLayers>(reference_for({}), precision, kReferencePassSequences);
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
