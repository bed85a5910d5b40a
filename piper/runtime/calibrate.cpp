#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <piper/cost/segment_time.h>
#include <piper/nn/aten.h>
#include <piper/nn/stage.h>
#include <piper/runtime/calibrate.h>
#include <piper/runtime/cores.h>
#include <piper/runtime/player.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace piper::runtime {
namespace {

using graph::Phase;
using schedule::SegmentKind;

constexpr int32_t kLayers = 3;
constexpr int64_t kSequence = 128;
constexpr int64_t kBatches[] = {1, 4, 8};  // sequences of a micro-batch

model::Model reference_model() {
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

strategy::Strategy one_rank(const model::Model& model, int64_t sequences,
                            strategy::Precision precision) {
  strategy::Strategy s;
  s.layers_per_stage = {model.num_layers()};
  s.precision = precision;
  s.sequence = kSequence;
  s.global_batch_sequences = s.micro_batch_sequences = sequences;
  s.num_micro_batches = 1;
  return s;
}

using Key = std::pair<SegmentKind, Phase>;
using Samples = std::map<Key, std::vector<double>>;

// Runs the whole model once on a stage: what each segment took, by kind.
class Pass {
 public:
  Pass(nn::Stage& stage, int64_t sequences)
      : stage_(stage),
        tokens_(at::arange(sequences * kSequence).remainder(251).reshape({sequences, kSequence})),
        targets_(tokens_.reshape({-1}).roll(1)) {}

  Samples run() {
    seconds_.clear();
    at::Tensor x = timed(SegmentKind::kEmbedding, Phase::kForward,
                         [&] { return stage_.embedding_forward(tokens_); });
    for (int32_t l = 0; l < kLayers; ++l) x = forward(l, x);
    nn::Tape head;
    timed(SegmentKind::kHead, Phase::kForward,
          [&] { return stage_.head_forward(x, targets_, &head), at::Tensor(); });
    at::Tensor g = timed(SegmentKind::kHead, Phase::kBackward,
                         [&] { return stage_.head_backward(x, targets_, head); });
    for (int32_t l = kLayers; l-- > 0;) g = backward(l, g);
    timed(SegmentKind::kEmbedding, Phase::kBackward,
          [&] { return stage_.embedding_backward(tokens_, g), at::Tensor(); });
    stage_.take_statistics();
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
    const double before = now_seconds();
    at::Tensor result = call();
    seconds_[{kind, phase}].push_back(now_seconds() - before);
    return result;
  }

  at::Tensor forward(int32_t l, at::Tensor x) {
    Layer& layer = layers_[l];
    layer = {};
    layer.x = std::move(x);
    layer.x1 = timed(SegmentKind::kAttention, Phase::kForward, [&] {
      return stage_.attention_forward(l, layer.x, kSequence, &layer.attention);
    });
    layer.rows = timed(SegmentKind::kGate, Phase::kForward, [&] {
      return stage_.gate_forward(l, layer.x1, kSequence, layer.routing, &layer.gate);
    });
    layer.out = timed(SegmentKind::kExperts, Phase::kForward, [&] {
      return stage_.experts_forward(l, layer.rows, layer.routing, &layer.experts);
    });
    return timed(SegmentKind::kMerge, Phase::kForward,
                 [&] { return stage_.merge_forward(l, layer.out, layer.routing, layer.x1); });
  }

  at::Tensor backward(int32_t l, const at::Tensor& gx) {
    Layer& layer = layers_[l];
    nn::Stage::MergeGradients merge;
    timed(SegmentKind::kMerge, Phase::kBackward, [&] {
      return merge = stage_.merge_backward(l, gx, layer.out, layer.routing), at::Tensor();
    });
    const at::Tensor g_rows = timed(SegmentKind::kExperts, Phase::kBackward, [&] {
      return stage_.experts_backward(l, merge.returned, layer.rows, layer.routing, layer.experts);
    });
    const at::Tensor gx1 = timed(SegmentKind::kGate, Phase::kBackward, [&] {
      return stage_.gate_backward(l, g_rows, merge.weights, gx, layer.x1, layer.routing,
                                  layer.gate);
    });
    at::Tensor g = timed(SegmentKind::kAttention, Phase::kBackward, [&] {
      return stage_.attention_backward(l, gx1, layer.x, layer.x1, kSequence, layer.attention);
    });
    layer = {};
    return g;
  }

  nn::Stage& stage_;
  at::Tensor tokens_, targets_;
  Layer layers_[kLayers];
  Samples seconds_;
};

// What each segment of a pass took, by kind, over layers, repeats and ranks, all ranks running at once.
Samples measure(const model::Model& model, int64_t sequences, strategy::Precision precision,
                const CalibrateOptions& options) {
  Samples samples;
  std::mutex mutex;
  Cores cores = cores_for(options.num_cores, options.num_ranks);
  std::barrier together(options.num_ranks);
  const strategy::Strategy strategy = one_rank(model, sequences, precision);
  const auto body = [&] {
    at::set_num_threads(1);
    const auto stage = nn::make_stage(model, strategy, Rank(0), {.dtype = scalar_type(precision)});
    Pass pass(*stage, sequences);
    for (int64_t repeat = 0; repeat <= options.num_repeats; ++repeat) {
      together.arrive_and_wait();
      const Cores::Hold core(cores);
      const Samples seconds = pass.run();
      if (repeat == 0) continue;  // first touch
      const std::lock_guard lock(mutex);
      for (const auto& [key, values] : seconds)
        samples[key].insert(samples[key].end(), values.begin(), values.end());
    }
  };
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < options.num_ranks; ++r) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
  for (auto& [key, values] : samples) std::ranges::sort(values);
  return samples;
}

// The standard deviation of the logarithms. Stalls count: an exchange waits for them, too.
double scatter_of(const std::vector<double>& seconds) {
  double sum = 0, squares = 0;
  for (const double one : seconds) {
    sum += std::log(one);
    squares += std::log(one) * std::log(one);
  }
  const auto n = static_cast<double>(seconds.size());
  return std::sqrt(std::max(0.0, squares / n - sum / n * (sum / n)));
}

}  // namespace

void calibrate_segments(cluster::Cluster& cluster, strategy::Precision precision,
                        const CalibrateOptions& options) {
  const model::Model model = reference_model();
  const model::FeedForward& mixture = model.layers.front().feed_forward;
  std::map<Key, double> log_ratios;
  double total = 0, scattered = 0;
  for (const int64_t sequences : kBatches) {
    cost::SegmentWork work;
    work.sequences = sequences;
    work.sequence = kSequence;
    work.rows = work.received_rows = work.tokens() * mixture.top_k;
    work.local_experts = mixture.num_experts;
    work.largest_expert_rows = work.rows / work.local_experts;
    work.element_bytes = static_cast<int64_t>(at::elementSize(scalar_type(precision)));
    for (const auto& [key, samples] : measure(model, sequences, precision, options)) {
      const auto [kind, phase] = key;
      const double seconds = samples[samples.size() / 2];
      total += seconds;
      scattered += seconds * scatter_of(samples);
      const bool in_layers = kind != SegmentKind::kEmbedding && kind != SegmentKind::kHead;
      const double priced =
          cost::segment_seconds(model, {kind, in_layers ? 0 : -1}, phase, work, cluster, precision);
      if (priced > 0)
        log_ratios[key] += std::log(seconds / priced) / static_cast<double>(std::size(kBatches));
    }
  }
  for (const auto& [key, log_ratio] : log_ratios)
    cluster.numbers[cost::measured_over_priced_name(key.first, key.second)] = std::exp(log_ratio);
  if (total > 0) cluster.numbers[cost::kTaskScatterName] = scattered / total;
}

}  // namespace piper::runtime
