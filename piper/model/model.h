// What a model is: its layers and the shapes of everything in them. Built by import.h from a
// Hugging Face config.json or a built-in; measured by count.h (parameters, FLOPs, bytes). Knows no
// machine and no tensor.
#pragma once

#include <piper/base/traits.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::model {

enum class AttentionKind {
  kGrouped,     // MHA / GQA / MQA: num_kv_heads <= num_heads
  kLatent,      // MLA (DeepSeek-V2): low-rank queries and keys, a rotary part of its own
  kGatedDelta,  // linear attention (gated delta net, Qwen3-Next)
};

// How the queries and keys are normalised before the rotary embedding.
enum class QkNorm {
  kNone,
  kPerHead,     // one weight of head_dim, applied to each head (Qwen3)
  kFull,        // one weight over all heads: num_heads*head_dim and num_kv_heads*head_dim (OLMoE)
  kUnweighted,  // normalised without a weight (Llama 4)
};

struct LatentAttention {  // DeepSeek-V2 section 2.1; 0 rank = no low-rank factor
  int64_t query_rank = 0;
  int64_t key_value_rank = 0;
  int64_t nope_head_dim = 0;
  int64_t rope_head_dim = 0;
  int64_t value_head_dim = 0;

  bool operator==(const LatentAttention&) const = default;
};

// Sparse attention: small heads score every earlier token, and the layer attends to the best ones.
// In latent attention (DeepSeek-V3.2) the queries come from the low rank, keys have a LayerNorm,
// and a weight a head is projected; in grouped attention (MiniMax-M3) queries and keys come from
// the hidden state, each with a norm.
struct Indexer {
  int64_t heads = 0;  // 0 = none
  int64_t head_dim = 0;
  int64_t top_k = 0;    // tokens that the layer attends to
  bool shared = false;  // an earlier layer's choice is taken: no weights and no scores (GLM-5.2)

  bool is_used() const { return heads > 0; }  // the layer attends to top_k tokens
  bool has_weights() const { return heads > 0 && !shared; }
  bool operator==(const Indexer&) const = default;
};

struct GatedDeltaAttention {  // Qwen3-Next
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_head_dim = 0;
  int64_t value_head_dim = 0;
  int64_t conv_kernel = 0;

  bool operator==(const GatedDeltaAttention&) const = default;
};

// Where the keys and values of grouped attention come from.
enum class KeyValue {
  kProjected,
  kValuesAreKeys,   // one projection gives both (Gemma 4)
  kOfEarlierLayer,  // those of an earlier layer: only queries are projected (Gemma 4)
};

struct Attention {
  AttentionKind kind = AttentionKind::kGrouped;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;        // of queries and keys
  int64_t value_head_dim = 0;  // grouped attention only; 0 = head_dim (MiMo-V2's is smaller)
  KeyValue key_value = KeyValue::kProjected;
  bool query_bias = false, key_bias = false, value_bias = false, output_bias = false;
  bool output_gate =
      false;  // queries projected twice as wide, the second half gates the output (Qwen3-Next)
  bool gate_bias = false;  // the gate's half has a bias too
  bool head_gate = false;  // one gate a head, projected from the hidden state (Step-3.5)
  bool sinks = false;      // one learned logit a head (gpt-oss)
  QkNorm qk_norm = QkNorm::kNone;
  bool rotary = true;         // false: a layer without positions (Llama 4)
  int64_t window = 0;         // sliding or chunked attention span in tokens; 0 = full causal
  bool chunked = false;       // the window starts anew at every multiple of its span (Llama 4)
  Indexer indexer;            // kGrouped and kLatent
  LatentAttention latent;     // kLatent only
  GatedDeltaAttention delta;  // kGatedDelta only

  // Widths of grouped attention, in elements of one token.
  int64_t value_dim() const { return value_head_dim > 0 ? value_head_dim : head_dim; }
  int64_t query_width() const { return num_heads * head_dim; }
  int64_t output_width() const { return num_heads * value_dim(); }
  int64_t key_width() const { return num_kv_heads * head_dim; }
  int64_t value_width() const { return num_kv_heads * value_dim(); }
  // These count the projections that the layer has itself; they are 0 where it has none.
  int64_t projected_key_width() const {
    return key_value == KeyValue::kOfEarlierLayer ? 0 : key_width();
  }
  int64_t projected_value_width() const {
    return key_value == KeyValue::kProjected ? value_width() : 0;
  }

  bool operator==(const Attention&) const = default;
};

enum class Score { kSoftmax, kSigmoid };

// A dense or a mixture feed-forward. num_experts == 0: dense with `ffn`.
struct FeedForward {
  int64_t ffn = 0;           // intermediate size of the dense MLP, or of one routed expert
  int64_t num_matrices = 3;  // 3 = SwiGLU (gate, up, down), 2 = up, down (ERRATA Piper 2)
  bool bias = false;         // of the dense MLP, or of the shared experts
  // --- mixture only ---
  bool expert_bias = false;  // biases in every routed expert (gpt-oss)
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t shared_ffn = 0;      // intermediate size of all shared experts together; 0 = none
  bool shared_gate = false;    // sigmoid gate on the shared expert (Qwen1.5-MoE): hidden parameters
  bool router_bias = false;    // bias added to the router's logits (gpt-oss)
  bool router_scales = false;  // a scale of the router's input and one of each expert (Gemma 4)
  // bias used for selection only (DeepSeek-V3): a buffer in `transformers`, not a parameter
  bool selection_bias = false;
  bool selection_bias_is_parameter = false;  // ... except where it is stored as one (ERNIE 4.5)
  Score score = Score::kSoftmax;
  bool normalise_top_k = false;  // selected probabilities divided by their sum
  double routed_scaling = 1.0;
  int64_t num_groups = 1, top_groups = 1;  // group-limited routing
  bool is_moe() const { return num_experts > 0; }
  // Something dense runs beside the routed experts.
  bool has_shared() const { return is_moe() && (shared_ffn > 0 || parallel_dense_ffn > 0); }
  // Residual dense MLP beside the mixture (Arctic); 0 = none. Shared experts and this one have 3 or
  // 2 matrices as stated by num_dense_matrices.
  int64_t parallel_dense_ffn = 0;
  int64_t num_dense_matrices = 3;

  bool operator==(const FeedForward&) const = default;
};

struct Layer {
  Attention attention;
  FeedForward feed_forward;
  int64_t num_norms =
      2;  // weighted RMSNorms of the residual stream in the layer (input, post-attention)
  // Width of the layer's own embedding of the token, which is gated and added to the residual
  // stream; 0 = none (Gemma 4 E2B and E4B). The gate and the way out are matrices of hidden x
  // input_width.
  int64_t input_width = 0;

  bool operator==(const Layer&) const = default;
};

struct Rope {
  double theta = 10000.0;
  double partial_factor = 1.0;   // share of head_dim that is rotated
  bool interleaved = false;      // pairs (2i, 2i + 1) turn together, not (i, i + half) (DeepSeek)
  std::string scaling = "none";  // "none", "linear", "llama3", "yarn", "dynamic", "longrope"
  // These two describe the scaling; 0 where the document says nothing.
  double factor = 0;
  int64_t original_positions = 0;
  double beta_fast = 32, beta_slow = 1;          // yarn
  double mscale = 0, mscale_all_dim = 0;         // yarn (DeepSeek)
  double attention_factor = 0;                   // yarn: of cosine and sine; 0 = derived
  bool truncate = true;                          // yarn: whole dimensions bound the ramp
  double low_frequency = 1, high_frequency = 4;  // llama3
};

// The loss that a coefficient for balanced experts is of. With f_i for an expert's share of the
// choices and P_i for its mean probability, E sum_i f_i P_i is 1 where routers are even.
enum class BalancingLoss : uint8_t {
  // That sum of each mixture layer, added up over the layers: coefficient x layers where routers
  // are even (Fedus et al. 2021, eq. 4-6; DeepSeek's aux_loss_alpha; Megatron's
  // --moe-aux-loss-coeff).
  kEachLayer,
  // One such sum over the tokens of all layers, its f_i not divided by k: coefficient x k where
  // routers are even (load_balancing_loss_func of transformers).
  kJoinedLayers,
};
struct BalancingLossTraits {
  BalancingLoss value;
  const char* name;
  const char* description;
};
inline constexpr std::array kBalancingLossTraits{
    BalancingLossTraits{BalancingLoss::kEachLayer, "each-layer", "each mixture layer's loss"},
    BalancingLossTraits{BalancingLoss::kJoinedLayers, "joined-layers",
                        "transformers' loss, which joins all layers and is not divided by top-k"}};
static_assert(are_in_order(kBalancingLossTraits));
constexpr const auto& rows(BalancingLoss) { return kBalancingLossTraits; }

// An encoder of images or sound beside the language model. Piper plans the language model alone.
struct Tower {
  std::string name;  // the key that describes it: "vision_config"
  std::optional<int64_t>
      parameters;  // with what joins it to the language model; empty = not counted
};

struct Model {
  std::string name;
  std::string family;  // `model_type` of the config ("mixtral"), or "" for a built-in without one
  int64_t hidden = 0;
  int64_t vocabulary = 0;
  bool tied_embeddings = false;
  bool lm_head_bias = false;
  int64_t input_vocabulary =
      0;  // rows of the layers' own embeddings (Layer::input_width); 0 = none
  int64_t learned_positions = 0;  // rows of a learned position table; 0 = rotary or none
  std::vector<Layer> layers;
  double norm_epsilon = 1e-6;
  bool norm_has_bias = false;  // LayerNorm with bias instead of RMSNorm
  bool final_norm = true;      // the norm before the head has a weight (OLMo's has none)
  Rope rope;
  int64_t max_positions = 0;            // 0 = not stated
  double router_aux_coefficient = 0.0;  // as the document states it, so of ...
  BalancingLoss balancing_loss = BalancingLoss::kEachLayer;
  double router_z_coefficient = 0.0;  // of the z-loss (ST-MoE, eq. 5)
  double initializer_range = 0.02;
  int64_t num_next_token_layers =
      0;  // multi-token-prediction layers of the checkpoint, counted apart
  std::string activation = "silu";
  std::string source;  // where the shapes come from, when the document says so (built-ins do)
  std::vector<std::string>
      ignored_keys;  // keys of the config that were not understood (and change no shape we know of)
  std::vector<std::string> ignored_on_request;  // keys that the user asked to ignore, as they stood
  std::vector<Tower> towers;                    // left out of every count
  std::vector<std::string>
      assumptions;  // what the document leaves open and how it was read, one line each

  // Modules of multi-token prediction that are trained (with_mtp(); DeepSeek-V3, section 2.2): the
  // layer of module k is layers[num_layers() + k - 1]. What is said of "the model" without them
  // means the first num_layers() layers.
  int64_t mtp_depth = 0;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()) - mtp_depth; }
  // Depth of the module that a layer belongs to; 0 for the model's own layers.
  int64_t mtp_depth_of(int64_t layer) const {
    return layer < num_layers() ? 0 : layer - num_layers() + 1;
  }
  // Positions of a sequence that a layer learns from: module k joins position i with token i + k,
  // so the last k have none.
  int64_t trained_positions(int64_t layer, int64_t sequence) const {
    return sequence - mtp_depth_of(layer);
  }
  // The last stage needs the table of the first one: as its head, or for its modules' tokens.
  bool shares_embedding() const { return tied_embeddings || mtp_depth > 0; }
  // ... and then holds it apart from its head.
  bool copies_embedding() const { return mtp_depth > 0 && !tied_embeddings; }
  int64_t num_moe_layers() const;
  // The routed experts of the widest mixture layer; 0 for a dense model.
  int64_t num_experts() const;
  int64_t top_k() const;
  // The coefficient of each mixture layer's loss, as Piper and Megatron compute it, with which even
  // routers have the loss that the document's coefficient gives.
  double layer_aux_coefficient() const;
};

inline constexpr int64_t kMaxMtpDepth = 4;

// The model with `depth` modules of multi-token prediction, each with a layer like its last one.
// Requires 0 <= depth <= kMaxMtpDepth and a model without modules.
Model with_mtp(Model model, int64_t depth);

}  // namespace piper::model
