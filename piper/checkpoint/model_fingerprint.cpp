#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/checkpoint/model_fingerprint.h>
#include <piper/files/sha256.h>

#include <string_view>
#include <type_traits>

namespace piper::checkpoint {
namespace {

constexpr std::string_view kVersion = "2-";

template <typename Field>
std::string field_text(const Field& field) {
  if constexpr (std::is_enum_v<Field>)
    return fmt::format(" {}", static_cast<int>(field));
  else
    return fmt::format(" {}", field);  // the shortest text that reads back as the same number
}

template <typename... Fields>
std::string texts(const Fields&... fields) {
  return (field_text(fields) + ...);
}

// Each function below names every field of its record, so that one more field does not compile.

std::string text_of(const model::LatentAttention& latent) {
  const auto& [query_rank, key_value_rank, nope_head_dim, rope_head_dim, value_head_dim] = latent;
  return texts(query_rank, key_value_rank, nope_head_dim, rope_head_dim, value_head_dim);
}

std::string text_of(const model::Indexer& indexer) {
  const auto& [heads, head_dim, top_k, shared] = indexer;
  return texts(heads, head_dim, top_k, shared);
}

std::string text_of(const model::GatedDeltaAttention& delta) {
  const auto& [key_heads, value_heads, key_head_dim, value_head_dim, conv_kernel] = delta;
  return texts(key_heads, value_heads, key_head_dim, value_head_dim, conv_kernel);
}

std::string text_of(const model::Attention& attention) {
  const auto& [kind, num_heads, num_kv_heads, head_dim, value_head_dim, key_value, query_bias,
               key_bias, value_bias, output_bias, output_gate, gate_bias, head_gate, sinks, qk_norm,
               rotary, window, chunked, indexer, latent, delta] = attention;
  return texts(kind, num_heads, num_kv_heads, head_dim, value_head_dim, key_value, query_bias,
               key_bias, value_bias, output_bias, output_gate, gate_bias, head_gate, sinks, qk_norm,
               rotary, window, chunked) +
         text_of(indexer) + text_of(latent) + text_of(delta);
}

std::string text_of(const model::FeedForward& feed_forward) {
  const auto& [ffn, num_matrices, bias, expert_bias, num_experts, top_k, shared_ffn, shared_gate,
               router_bias, router_scales, selection_bias, selection_bias_is_parameter, score,
               normalise_top_k, routed_scaling, num_groups, top_groups, parallel_dense_ffn,
               num_dense_matrices] = feed_forward;
  return texts(ffn, num_matrices, bias, expert_bias, num_experts, top_k, shared_ffn, shared_gate,
               router_bias, router_scales, selection_bias, selection_bias_is_parameter, score,
               normalise_top_k, routed_scaling, num_groups, top_groups, parallel_dense_ffn,
               num_dense_matrices);
}

std::string text_of(const model::Layer& layer) {
  const auto& [attention, feed_forward, num_norms, input_width] = layer;
  return fmt::format("attention{} feed_forward{} layer{}\n", text_of(attention),
                     text_of(feed_forward), texts(num_norms, input_width));
}

std::string text_of(const model::Rope& rope) {
  const auto& [theta, partial_factor, interleaved, scaling, factor, original_positions, beta_fast,
               beta_slow, mscale, mscale_all_dim, attention_factor, truncate, low_frequency,
               high_frequency] = rope;
  return texts(theta, partial_factor, interleaved, scaling, factor, original_positions, beta_fast,
               beta_slow, mscale, mscale_all_dim, attention_factor, truncate, low_frequency,
               high_frequency);
}

std::string text_of(const model::Model& model) {
  // Not hashed: what the model is called and where it comes from (name, family, source), how it was
  // read (ignored_keys, ignored_on_request, towers, assumptions), what only a new run reads
  // (initializer_range), what bounds nothing by itself (max_positions: a rotary scaling holds the
  // number that it derives), and modules of the document that are not trained
  // (num_next_token_layers; the trained ones are mtp_depth). A family's names of tensors are those
  // in the checkpoint.
  const auto& [name, family, hidden, vocabulary, tied_embeddings, lm_head_bias, input_vocabulary,
               learned_positions, layers, norm_epsilon, norm_has_bias, final_norm, rope,
               max_positions, router_aux_coefficient, balancing_loss, router_z_coefficient,
               initializer_range, num_next_token_layers, activation, source, ignored_keys,
               ignored_on_request, towers, assumptions, mtp_depth] = model;
  std::string text = fmt::format(
      "model{} rope{} losses{}\n",
      texts(hidden, vocabulary, tied_embeddings, lm_head_bias, input_vocabulary, learned_positions,
            norm_epsilon, norm_has_bias, final_norm, activation, mtp_depth, layers.size()),
      text_of(rope), texts(router_aux_coefficient, balancing_loss, router_z_coefficient));
  for (const model::Layer& layer : layers) text += text_of(layer);
  return text;
}

// As it was, to the letter.
std::string earlier_text_of(const model::Attention& a) {
  const model::LatentAttention& l = a.latent;
  const model::GatedDeltaAttention& d = a.delta;
  return fmt::format(
      "attention {} {} {} {} {} {} {} {} {} {} {} {} {} | {} {} {} {} {} {} {} {} | {} {} {} {} {}",
      static_cast<int>(a.kind), a.num_heads, a.num_kv_heads, a.head_dim, a.query_bias, a.key_bias,
      a.value_bias, a.output_bias, a.output_gate, a.sinks, static_cast<int>(a.qk_norm), a.rotary,
      a.window, l.query_rank, l.key_value_rank, l.nope_head_dim, l.rope_head_dim, l.value_head_dim,
      a.indexer.heads, a.indexer.head_dim, a.indexer.top_k, d.key_heads, d.value_heads,
      d.key_head_dim, d.value_head_dim, d.conv_kernel);
}

std::string earlier_text_of(const model::FeedForward& f) {
  return fmt::format("feed_forward {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", f.ffn,
                     f.num_matrices, f.bias, f.num_experts, f.top_k, f.shared_ffn, f.shared_gate,
                     f.router_bias, f.selection_bias, static_cast<int>(f.score), f.normalise_top_k,
                     f.routed_scaling, f.num_groups, f.top_groups, f.parallel_dense_ffn);
}

bool is_earlier(const std::string& fingerprint) { return !fingerprint.starts_with(kVersion); }

std::string earlier_fingerprint(const model::Model& m) {
  std::string text = fmt::format(
      "model {} {} {} {} {} {} {} {} {} {} {} {}\n", m.hidden, m.vocabulary, m.tied_embeddings,
      m.lm_head_bias, m.learned_positions, m.norm_epsilon, m.norm_has_bias, m.rope.theta,
      m.rope.partial_factor, m.rope.scaling, m.activation, m.layers.size());
  for (const model::Layer& layer : m.layers)
    text += fmt::format("{} {} norms {}\n", earlier_text_of(layer.attention),
                        earlier_text_of(layer.feed_forward), layer.num_norms);
  if (m.mtp_depth > 0) text += fmt::format("mtp {}\n", m.mtp_depth);
  return files::sha256_hex(text);
}

}  // namespace

std::string model_fingerprint(const model::Model& model) {
  return std::string(kVersion) + files::sha256_hex(text_of(model));
}

bool has_fingerprint(const model::Model& model, const std::string& fingerprint) {
  return fingerprint ==
         (is_earlier(fingerprint) ? earlier_fingerprint(model) : model_fingerprint(model));
}

std::string left_open(const model::Model& model, const std::string& fingerprint,
                      const std::string& source) {
  if (!is_earlier(fingerprint)) return "";
  if (model.rope.scaling != "none")
    throw InvalidInput(fmt::format(
        "{}: was saved by an earlier Piper, which did not note the numbers of a rotary scaling "
        "('{}' here), so nothing tells whether they are this run's; allowed: the Piper that saved "
        "it, or its weights as a new start (piper checkpoint export, then --weights)",
        source, model.rope.scaling));
  return fmt::format(
      "{} was saved by an earlier Piper, which did not note which pairs the rotary embedding turns "
      "and the coefficients of the routers' losses: they are taken to be this run's",
      source);
}

}  // namespace piper::checkpoint
