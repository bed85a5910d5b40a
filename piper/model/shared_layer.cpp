#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/model/shared_layer.h>

#include <algorithm>
#include <functional>
#include <set>

namespace piper::model {
namespace {

// As many numbers of ranks up to `most` as divide the layer.
std::string allowed(int64_t most, const std::function<bool(int64_t)>& divides) {
  std::vector<int64_t> ranks;
  for (int64_t n = 1; n <= most && ranks.size() < 16; ++n)
    if (divides(n)) ranks.push_back(n);
  return fmt::format("{}", fmt::join(ranks, ", "));
}

// Every rank's query heads read the key heads that it has.
bool deals_heads(const Attention& a, int64_t ranks) {
  if (a.num_heads % ranks != 0) return false;
  if (a.kind != AttentionKind::kGrouped) return true;
  return a.num_kv_heads % ranks == 0 || ranks % a.num_kv_heads == 0;
}

// Rows of the first projections and columns of the last that are dealt, and biases of the former.
int64_t dealt_of_attention(int64_t hidden, const Attention& a, int64_t ranks) {
  if (a.kind == AttentionKind::kLatent) {
    const LatentAttention& l = a.latent;
    const int64_t query = l.nope_head_dim + l.rope_head_dim;
    const int64_t from = l.query_rank > 0 ? l.query_rank : hidden;
    return a.num_heads * (query * from + (l.nope_head_dim + l.value_head_dim) * l.key_value_rank +
                          l.value_head_dim * hidden);
  }
  int64_t dealt = hidden * (a.query_width() + a.output_width());
  if (a.query_bias) dealt += a.query_width();
  if (shares_key_heads(a, ranks)) return dealt;
  dealt += hidden * (a.projected_key_width() + a.projected_value_width());
  if (a.key_bias) dealt += a.projected_key_width();
  if (a.value_bias) dealt += a.projected_value_width();
  return dealt;
}

}  // namespace

bool shares_key_heads(const Attention& whole, int64_t ranks) {
  return ranks > 1 && whole.kind == AttentionKind::kGrouped && whole.num_kv_heads < ranks;
}

int64_t first_key_head(const Attention& whole, int64_t ranks, int64_t index) {
  return index * whole.num_kv_heads / ranks;
}

Attention share_of(const Attention& whole, int64_t ranks) {
  PIPER_CHECK(deals_heads(whole, ranks), "heads that cannot be dealt");
  Attention part = whole;
  part.num_heads /= ranks;
  part.num_kv_heads = shares_key_heads(whole, ranks) ? 1 : whole.num_kv_heads / ranks;
  return part;
}

int64_t dealt_parameters(const Model& model, const Layer& layer, int64_t ranks) {
  if (ranks == 1) return 0;
  const FeedForward& f = layer.feed_forward;
  return dealt_of_attention(model.hidden, layer.attention, ranks) +
         (f.is_moe() ? 0 : f.num_matrices * model.hidden * f.ffn);
}

std::vector<std::string> undividable(const Model& model, int64_t ranks) {
  std::vector<std::string> lines;
  if (ranks == 1) return lines;
  std::set<std::string> known;  // told once, with the first layer
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const Attention& a = model.layers[i].attention;
    const FeedForward& f = model.layers[i].feed_forward;
    const auto add = [&](const std::string& what) {
      if (known.insert(what).second) lines.push_back(fmt::format("layer {}: {}", i, what));
    };
    if (!deals_heads(a, ranks))
      add(fmt::format("{} heads with {} of keys over {} ranks; allowed: {}", a.num_heads,
                      a.num_kv_heads, ranks,
                      allowed(a.num_heads, [&](int64_t n) { return deals_heads(a, n); })));
    if (a.qk_norm == QkNorm::kFull)
      add("a norm over all heads of q and k needs them on one rank; allowed: 1");
    if (!f.is_moe() && f.ffn % ranks != 0)
      add(fmt::format("a width of {} over {} ranks; allowed: {}", f.ffn, ranks,
                      allowed(f.ffn, [&](int64_t n) { return f.ffn % n == 0; })));
  }
  return lines;
}

}  // namespace piper::model
