#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/nn/experts_grouped.h>
#include <piper/nn/tensor_ops.h>
#include <piper/profile/bench_operations.h>
#include <piper/profile/shape_curves.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>
#include <set>
#include <string>

namespace piper::profile {
namespace {

constexpr int64_t kAttentionWidth = 1024;  // heads x head size, about
constexpr int64_t kGroupedHeads = 4;       // query heads a key head
const std::vector<int64_t> kHeadSizes = {32, 48, 64, 80, 96, 128, 192, 256};

double real(int64_t value) { return static_cast<double>(value); }

// One layer's shapes: of the first layer with experts, else of the first.
const model::Layer& typical_layer(const model::Model& model) {
  PIPER_CHECK(!model.layers.empty());
  const auto mixture = std::ranges::find_if(
      model.layers, [](const model::Layer& layer) { return layer.feed_forward.is_moe(); });
  return mixture == model.layers.end() ? model.layers.front() : *mixture;
}

AttentionShape attention_of(const model::Layer& layer, int64_t sequences, int64_t sequence) {
  const model::Attention& a = layer.attention;
  AttentionShape shape{sequences, sequence, std::max<int64_t>(a.num_heads, 1), a.head_dim,
                       a.num_kv_heads > 0 ? a.num_kv_heads : std::max<int64_t>(a.num_heads, 1)};
  if (a.kind == model::AttentionKind::kLatent) {  // as trained: full heads of the joined size
    shape.head_dim = a.latent.nope_head_dim + a.latent.rope_head_dim;
    shape.kv_heads = shape.heads;
  }
  if (shape.head_dim <= 0) shape.head_dim = 64;
  return shape;
}

class Shapes {
 public:
  Shapes(strategy::Precision precision, const BenchDevice& device, const ModelShapes& model)
      : suffix_(std::string(".") + strategy::name(precision)),
        on_{device, executor::scalar_type(precision)},
        shapes_(model) {}

  // Projections of attention and of a dense net: tokens x (in, out).
  BenchCurve dense() const {
    BenchCurve curve{"dense_gemm" + suffix_, "flops", {"tokens", "in", "out"}, {}, true};
    std::set<std::pair<int64_t, int64_t>> in_out;
    for (const int64_t h : {256, 1024})
      for (const auto& pair : {std::pair{h, h}, {h, 3 * h}, {h, 4 * h}, {4 * h, h}})
        in_out.insert(pair);
    const model::Layer& layer = typical_layer(shapes_.model);
    const AttentionShape a = attention_of(layer, 1, 1);
    const int64_t hidden = shapes_.model.hidden;
    in_out.insert({hidden, (a.heads + 2 * a.kv_heads) * a.head_dim});
    in_out.insert({a.heads * a.head_dim, hidden});
    for (const auto& [in, out] : in_out)
      for (const int64_t tokens : {64, 512, 4096})
        curve.points.push_back({{real(tokens), real(in), real(out)},
                                2 * real(tokens) * real(in) * real(out),
                                gemm(tokens, out, in, on_)});
    return curve;
  }

  // Skinny products, balanced and skewed: each expert by itself, or all in libtorch's grouped
  // product.
  BenchCurve experts(bool grouped) const {
    BenchCurve curve{(grouped ? "expert_gemm_grouped" : "expert_gemm") + suffix_,
                     "flops",
                     {"rows", "hidden", "ffn", "experts", "skew"},
                     {},
                     true};
    std::set<std::pair<int64_t, int64_t>> sizes = {{256, 512}, {512, 128}, {1024, 1024}};
    if (!on_.device.is_cpu()) sizes = {{1024, 1024}, {2048, 1408}, {4096, 14336}};
    if (!shapes_.model.layers.empty()) {
      const model::FeedForward& net = typical_layer(shapes_.model).feed_forward;
      if (net.is_moe()) sizes.insert({shapes_.model.hidden, net.ffn});
    }
    for (const auto& [hidden, ffn] : sizes)
      for (const int64_t experts : {4, 16})
        for (const double skew : {0.0, 1.0})
          for (const int64_t rows : {4, 16, 64, 256, 1024}) {
            const ExpertsShape shape{hidden, ffn, skewed_rows(experts, rows * experts, skew)};
            if (shape.bytes(on_.dtype) > shapes_.operand_bytes) continue;
            curve.points.push_back(
                {{real(rows), real(hidden), real(ffn), real(experts), skew},
                 shape.flops(),
                 grouped ? experts_grouped(shape, on_) : experts_one_by_one(shape, on_)});
          }
    return curve;
  }

  BenchCurve attention_shapes(bool backward) const {
    BenchCurve curve{(backward ? "attention_shapes_backward" : "attention_shapes") + suffix_,
                     "flops",
                     {"batch", "sequence", "heads", "head_dim", "kv_heads"},
                     {},
                     true};
    for (const auto& [batch, sequence] :
         {std::pair{1, 128}, {4, 128}, {1, 512}, {4, 512}, {1, 2048}})
      for (const bool grouped : {false, true})
        for (const int64_t head_dim : kHeadSizes) {
          const int64_t heads = (kAttentionWidth + head_dim / 2) / head_dim;
          if (grouped && (heads % kGroupedHeads != 0 || backward)) continue;
          const AttentionShape shape{batch, sequence, heads, head_dim,
                                     grouped ? heads / kGroupedHeads : heads};
          curve.points.push_back(
              {{real(batch), real(sequence), real(heads), real(head_dim), real(shape.kv_heads)},
               shape.flops(backward),
               attention(shape, backward, on_)});
        }
    return curve;
  }

  BenchCurve norm(bool backward) const {
    BenchCurve curve{
        (backward ? "rms_norm_backward" : "rms_norm") + suffix_, "bytes", {"tokens", "hidden"}, {}};
    const double passes = backward ? 3 : 2;  // g and x read, g written; x read, y written
    for (const int64_t hidden : {256, 1024, 4096})
      for (const int64_t tokens : {64, 1024})
        curve.points.push_back({{real(tokens), real(hidden)},
                                passes * real(tokens * hidden) * element_bytes(),
                                rms_norm(tokens, hidden, backward, on_)});
    return curve;
  }

  BenchCurve routing() const {
    BenchCurve curve{"routing" + suffix_, "tokens", {"tokens", "experts", "top_k"}, {}};
    for (const auto& [experts, k] : {std::pair{8, 2}, {64, 6}, {256, 8}})
      for (const int64_t tokens : {256, 4096})
        curve.points.push_back(
            {{real(tokens), real(experts), real(k)}, real(tokens), route(tokens, experts, k, on_)});
    return curve;
  }

  BenchCurve permutation() const {
    BenchCurve curve{"permute" + suffix_, "bytes", {"rows", "hidden"}, {}};
    for (const int64_t hidden : {256, 1024, 4096})
      for (const int64_t rows : {256, 4096})
        curve.points.push_back({{real(rows), real(hidden)},
                                2 * real(rows * hidden) * element_bytes(),
                                permute(rows, hidden, on_)});
    return curve;
  }

  std::vector<BenchCurve> join() const {
    BenchCurve attention{"join_attention" + suffix_, "flops", {"sequences"}, {}, true};
    BenchCurve experts{"join_experts" + suffix_, "flops", {"sequences"}, {}, true};
    const model::Layer& layer = typical_layer(shapes_.model);
    for (int64_t sequences = 1; sequences <= 64; sequences *= 2) {
      const AttentionPart part{attention_of(layer, sequences, shapes_.sequence),
                               shapes_.model.hidden};
      attention.points.push_back({{real(sequences)}, part.flops(), attention_part(part, on_)});
      const ExpertsShape shape = experts_of(layer, sequences);
      if (shape.bytes(on_.dtype) <= shapes_.operand_bytes)
        experts.points.push_back(
            {{real(sequences)}, shape.flops(), experts_one_by_one(shape, on_)});
    }
    return {attention, experts};
  }

 private:
  double element_bytes() const { return static_cast<double>(at::elementSize(on_.dtype)); }

  ExpertsShape experts_of(const model::Layer& layer, int64_t sequences) const {
    const model::FeedForward& net = layer.feed_forward;
    const int64_t tokens = sequences * shapes_.sequence;
    const int64_t local = net.is_moe() ? net.num_experts / shapes_.ep : 1;
    const int64_t rows =
        net.is_moe() ? std::max<int64_t>(tokens * net.top_k * shapes_.ep / net.num_experts, 1)
                     : tokens;
    const ExpertsShape one{shapes_.model.hidden, net.ffn, {1}};
    const double fit = shapes_.operand_bytes / 2 / one.bytes(on_.dtype);
    if (fit < 1)
      throw InvalidInput(fmt::format(
          "{}: one expert takes {}, more than the {} that a rank may use for a measurement; give "
          "fewer --ranks or a smaller --model",
          shapes_.model.name, format_bytes(one.bytes(on_.dtype)),
          format_bytes(shapes_.operand_bytes / 2)));
    const auto num = static_cast<size_t>(std::min(real(local), fit));
    return {shapes_.model.hidden, net.ffn, std::vector<int64_t>(num, rows)};
  }

  std::string suffix_;
  OperandsOn on_;
  const ModelShapes& shapes_;
};

// A device's only where training would take it: a loop over the experts is never chosen there.
bool may_be_grouped(const BenchDevice& device, strategy::Precision precision) {
  if (precision == strategy::Precision::kFp64) return false;
  return device.is_cpu() || precision != strategy::Precision::kBf16 ||
         nn::try_grouped_products(device.device, at::kBFloat16);
}

}  // namespace

int64_t experts_among(const model::Model& model, int64_t num_ranks) {
  const model::FeedForward& net = typical_layer(model).feed_forward;
  int64_t ep = net.is_moe() ? std::min(num_ranks, net.num_experts) : 1;
  while (net.is_moe() && net.num_experts % ep != 0) --ep;
  return ep;
}

std::vector<BenchCurve> expert_curves(strategy::Precision precision, const BenchDevice& device,
                                      double operand_bytes) {
  const ModelShapes shapes{.model = {}, .operand_bytes = operand_bytes};
  const Shapes of(precision, device, shapes);
  std::vector<BenchCurve> curves = {of.experts(false)};
  if (may_be_grouped(device, precision)) curves.push_back(of.experts(true));
  return curves;
}

std::vector<BenchCurve> shape_curves(strategy::Precision precision, const BenchDevice& device,
                                     const ModelShapes& shapes) {
  const Shapes of(precision, device, shapes);
  std::vector<BenchCurve> curves = {of.dense(), of.experts(false)};
  if (may_be_grouped(device, precision)) curves.push_back(of.experts(true));
  for (const bool backward : {false, true}) curves.push_back(of.attention_shapes(backward));
  for (const bool backward : {false, true}) curves.push_back(of.norm(backward));
  curves.push_back(of.routing());
  curves.push_back(of.permutation());
  return curves;
}

std::vector<BenchCurve> join_curves(strategy::Precision precision, const BenchDevice& device,
                                    const ModelShapes& shapes) {
  return Shapes(precision, device, shapes).join();
}

}  // namespace piper::profile
