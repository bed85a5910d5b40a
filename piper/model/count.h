// How much a model needs: parameters, FLOPs, and bytes of state. Pure arithmetic on model.h.
#pragma once

#include <piper/model/model.h>

#include <cstdint>
#include <vector>

namespace piper::model {

// Parameters of one layer by component. All counts are of the whole layer, unsharded.
struct LayerParameters {
  int64_t attention = 0;       // projections, their biases, q/k norms, sinks, indexer
  int64_t router = 0;          // router weights and bias, shared-expert gate
  int64_t routed_experts = 0;  // all routed experts
  int64_t shared_experts = 0;  // always active experts (and a parallel dense MLP)
  int64_t dense_mlp = 0;       // a dense layer's MLP
  int64_t norms = 0;
  int64_t inputs = 0;  // gate and way out of the layer's own embedding

  int64_t total() const {
    return attention + router + routed_experts + shared_experts + dense_mlp + norms + inputs;
  }
  int64_t dense() const { return total() - routed_experts; }
};

// Parameters of the two ends of a model, whole.
struct EndParameters {
  int64_t table = 0;      // vocabulary x hidden
  int64_t embedding = 0;  // all tables, and what projects and normalises the layers' own inputs
  int64_t head = 0;       // its bias alone when tied
  int64_t final_norm = 0;
};

struct Parameters {
  std::vector<LayerParameters> layers;
  int64_t embedding = 0;  // all tables, and what projects and normalises the layers' own inputs
  int64_t head = 0;       // 0 when tied
  int64_t final_norm = 0;
  // Multi-token prediction, not part of total(): the modules that are trained, else those of the
  // checkpoint.
  int64_t next_token_layers = 0;

  int64_t total() const;
  LayerParameters sum() const;
};

LayerParameters count_layer(const Model& model, const Layer& layer);
EndParameters count_ends(const Model& model);
Parameters count_parameters(const Model& model);

// One module of multi-token prediction has these beside its layer: the projection that joins state
// and embedding, their two norms and that of its head. Embedding and head are the model's own.
int64_t mtp_join_parameters(const Model& model);

// Parameters that one token uses: top_k routed experts instead of all, everything else.
// `with_embedding` counts the embedding table too (makers differ; the untied head is always
// counted).
int64_t active_parameters(const Model& model, bool with_embedding = true);

// Matrix-multiplication FLOPs of one token's forward (2 per multiply-add) at sequence length
// `sequence`: active experts only, causal attention counted as half of sequence^2 scores (as it is
// computed by flash kernels), router and head included. Backward is twice the forward. This is the
// numerator of MFU.
struct TokenFlops {
  double attention_projections = 0;
  double attention_scores = 0;  // QK^T and PV
  double router = 0;
  double routed_experts = 0;
  double shared_experts = 0;
  double dense_mlp = 0;
  double inputs = 0;  // of the layers' own embeddings
  double head = 0;
  // modules of multi-token prediction: joining, layer and head, of the positions that they have
  double mtp = 0;
  double forward() const {
    return attention_projections + attention_scores + router + routed_experts + shared_experts +
           dense_mlp + inputs + head + mtp;
  }
  double backward() const { return 2 * forward(); }
};
TokenFlops layer_token_flops(const Model& model, const Layer& layer, int64_t sequence);  // head = 0
TokenFlops token_flops(const Model& model, int64_t sequence);

}  // namespace piper::model
