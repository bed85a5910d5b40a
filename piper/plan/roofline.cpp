#include <fmt/format.h>
#include <piper/model/count.h>
#include <piper/plan/roofline.h>

#include <algorithm>

namespace piper::plan {
namespace {

using model::AttentionKind;
using strategy::Precision;

double operand_bytes(Precision precision) {
  switch (precision) {
    case Precision::kFp64:
      return 8;
    case Precision::kFp32:
      return 4;
    case Precision::kBf16:
    case Precision::kFp16:
      return 2;
    case Precision::kFp8:
    case Precision::kMxfp8:
      return 1;
    case Precision::kNvfp4:
      return 0.5;
  }
  return 2;
}

class Parts {
 public:
  Parts(const Request& r, const strategy::Strategy& s)
      : r_(r),
        rates_(*r.cluster, r.precision),
        efficiency_(r.trainer->calibration_of(r.cluster->device).compute_efficiency),
        tp_(static_cast<double>(s.mesh.tp)),
        cp_(static_cast<double>(s.mesh.cp)),
        ep_(static_cast<double>(s.mesh.ep)),
        etp_(static_cast<double>(s.mesh.etp)),
        tokens_(static_cast<double>(s.micro_batch_sequences * s.sequence) / cp_),
        rows_part_(s.capacity.balanced_part()),
        imbalance_(s.capacity.limited(r.imbalance_at(s.mesh.ep))),
        hidden_(static_cast<double>(r.model->hidden)),
        in_(operand_bytes(r.precision)),
        out_(std::max(2.0, in_)) {
    roofline_.peak_flops_per_second = rates_.peak_flops_per_second();
    roofline_.memory_bytes_per_second = r.cluster->memory_bytes_per_second;
  }

  Roofline all() {
    for (int64_t i = 0; i < r_.model->num_layers(); ++i)
      layer(r_.model->layers[static_cast<size_t>(i)]);
    const double words = static_cast<double>(r_.model->vocabulary) / tp_;
    add({.part = "head",
         .flops = 2 * tokens_ * words * hidden_,
         .bytes = in_ * (tokens_ + words) * hidden_ + out_ * tokens_ * words},
        rates_.product_seconds(tokens_, words, hidden_));
    return std::move(roofline_);
  }

 private:
  // The same part of another layer only counts up.
  bool is_known(const RooflinePoint& point) {
    for (RooflinePoint& known : roofline_.points) {
      if (known.part != point.part || known.flops != point.flops || known.bytes != point.bytes)
        continue;
      ++known.num_layers;
      return true;
    }
    return false;
  }
  void add(RooflinePoint point, double seconds, double peak = 0) {
    if (point.flops <= 0 || seconds <= 0 || is_known(point)) return;
    point.num_layers = point.part == "head" ? 0 : 1;
    point.peak_flops_per_second = peak > 0 ? peak : rates_.peak_flops_per_second();
    point.predicted_flops_per_second = point.flops * efficiency_ / seconds;
    roofline_.points.push_back(std::move(point));
  }

  // Elements of one token on this rank.
  struct Heads {
    double queries = 0, keys_and_values = 0, output = 0, low_rank = 0, head_dim = 0;
  };
  Heads heads_of(const model::Attention& a) const {
    const double n = static_cast<double>(a.num_heads) / tp_;
    if (a.kind == AttentionKind::kLatent) {
      const model::LatentAttention& l = a.latent;
      const auto d = static_cast<double>(l.nope_head_dim + l.rope_head_dim);
      const auto v = static_cast<double>(l.value_head_dim);
      return {n * d, n * (d + v), n * v,
              static_cast<double>(l.query_rank + l.key_value_rank + l.rope_head_dim), d};
    }
    if (a.kind == AttentionKind::kGatedDelta) {
      const model::GatedDeltaAttention& d = a.delta;
      const double key = static_cast<double>(d.key_heads * d.key_head_dim) / tp_;
      const double value = static_cast<double>(d.value_heads * d.value_head_dim) / tp_;
      return {key, key + value, value, 0, static_cast<double>(d.key_head_dim)};
    }
    const auto d = static_cast<double>(a.head_dim);
    const double kv = std::max(static_cast<double>(a.num_kv_heads) / tp_, 1.0);
    const auto v = static_cast<double>(a.value_dim());
    return {n * d, kv * (d + v), n * v, 0, d};
  }

  void layer(const model::Layer& layer) {
    const model::TokenFlops flops = model::layer_token_flops(*r_.model, layer, r_.sequence);
    attention(layer, flops);
    const model::FeedForward& f = layer.feed_forward;
    if (f.is_moe()) {
      experts(f, flops.routed_experts);
      dense("shared experts", flops.shared_experts, f.shared_ffn + f.parallel_dense_ffn,
            f.num_dense_matrices);
    } else {
      dense("dense feed-forward", flops.dense_mlp, f.ffn, f.num_matrices);
    }
  }

  void attention(const model::Layer& layer, const model::TokenFlops& flops) {
    const model::Attention& a = layer.attention;
    const Heads h = heads_of(a);
    const double projections = flops.attention_projections * tokens_ / tp_;
    const double weights = flops.attention_projections / 2 / tp_;  // a multiply-add each
    const double outer = h.queries + h.keys_and_values + h.output + 2 * h.low_rank;
    // Seconds of one product of the same rows and weights.
    add({.part = words("attention projections", a),
         .flops = projections,
         .bytes = in_ * (weights + tokens_ * hidden_) + out_ * tokens_ * (outer + hidden_)},
        rates_.product_seconds(tokens_, weights / hidden_, hidden_));
    const double scores = flops.attention_scores * tokens_ / tp_;
    const double wide = std::max(2.0, in_);
    add({.part = words("attention scores", a) +
                 (a.window > 0 ? fmt::format(", window {}", a.window) : ""),
         .flops = scores,
         .bytes = wide * tokens_ * (h.queries + cp_ * h.keys_and_values + h.output)},
        rates_.attention_seconds(scores, static_cast<double>(r_.sequence), h.head_dim, false),
        attention_peak());
  }

  static std::string words(const char* part, const model::Attention& a) {
    return fmt::format("{}{}", part, a.kind == AttentionKind::kGatedDelta ? " (linear)" : "");
  }

  // Products in fewer bits leave attention in bf16.
  double attention_peak() const {
    const auto bf16 = r_.cluster->compute.find("bf16");
    const bool narrow = converts_operands(r_.precision);
    return narrow && bf16 != r_.cluster->compute.end() ? bf16->second.peak_flops_per_second : 0;
  }

  void dense(const char* part, double token_flops, int64_t ffn, int64_t num_matrices) {
    const double width = static_cast<double>(ffn) / tp_;
    const double up = num_matrices == 3 ? 2 : 1;
    add({.part = part,
         .flops = token_flops * tokens_ / tp_,
         .bytes = mlp_bytes(tokens_, width, up, 1)},
        rates_.product_seconds(tokens_, up * width, hidden_) +
            rates_.product_seconds(tokens_, hidden_, width));
  }

  void experts(const model::FeedForward& f, double token_flops) {
    const double dealt =
        tokens_ / tp_ * rows_part_ * etp_ * imbalance_;  // tokens whose copies come here
    const double rows = dealt * static_cast<double>(f.top_k);
    const double local = static_cast<double>(f.num_experts) / ep_;
    const double width = static_cast<double>(f.ffn) / etp_;
    const double up = f.num_matrices == 3 ? 2 : 1;
    const double seconds = local * (rates_.product_seconds(rows / local, up * width, hidden_) +
                                    rates_.product_seconds(rows / local, hidden_, width));
    add({.part = "routed experts",
         .flops = token_flops * dealt / etp_,
         .bytes = mlp_bytes(rows, width, up, local)},
        seconds / r_.trainer->grouped_efficiency);
  }

  // `local` experts of this width, `rows` in all: rows in, both products with the activation
  // between them, rows out.
  double mlp_bytes(double rows, double width, double up, double local) const {
    return in_ * (local * (up + 1) * hidden_ * width + rows * (hidden_ + width)) +
           out_ * rows * (up * width + hidden_);
  }

  const Request& r_;
  cost::Rates rates_;
  double efficiency_, tp_, cp_, ep_, etp_, tokens_, rows_part_, imbalance_, hidden_, in_, out_;
  Roofline roofline_;
};

}  // namespace

double Roofline::attainable_flops_per_second(const RooflinePoint& p) const {
  return std::min(p.peak_flops_per_second, p.intensity() * memory_bytes_per_second);
}

bool Roofline::is_memory_bound(const RooflinePoint& p) const {
  return p.intensity() * memory_bytes_per_second < p.peak_flops_per_second;
}

Roofline make_roofline(const Request& request, const strategy::Strategy& strategy) {
  return Parts(request, strategy).all();
}

}  // namespace piper::plan
