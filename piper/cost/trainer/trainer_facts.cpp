#include <piper/cost/trainer/trainer_facts.h>
#include <piper/cost/trainer/trainer_profile.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace piper::cost {
namespace {

using enum Fact::Kind;
using model::AttentionKind;
using model::FeedForward;
using model::Layer;
using strategy::Strategy;
using enum Decided;

template <class Is>
bool any_layer(const Known& k, Is is) {
  return std::ranges::any_of(k.model->layers, is);
}
template <class Of>
int64_t most_of_layers(const Known& k, Of of) {
  int64_t most = 0;
  for (const Layer& layer : k.model->layers) most = std::max(most, of(layer));
  return most;
}
// What divides the heads of every layer that has such.
template <class Of>
int64_t common_of_layers(const Known& k, Of of) {
  int64_t common = 0;
  for (const Layer& layer : k.model->layers) common = std::gcd(common, of(layer));
  return common;
}
const FeedForward* first_mixture(const Known& k) {
  for (const Layer& layer : k.model->layers)
    if (layer.feed_forward.is_moe()) return &layer.feed_forward;
  return nullptr;
}
template <class Of>
int64_t of_mixture(const Known& k, Of of) {
  const FeedForward* f = first_mixture(k);
  return f == nullptr ? 0 : static_cast<int64_t>(of(*f));
}
template <class Enum>
int64_t index(Enum value) {
  return static_cast<int64_t>(value);
}
int64_t percent(double part) { return std::llround(100 * part); }

bool is_full_anywhere(const Strategy& s) {
  for (int64_t stage = 0; stage < s.mesh.pp; ++stage)
    if (s.recompute_of(stage) == strategy::Recompute::kFull) return true;
  return false;
}
bool has_replicas(const Strategy& s) { return s.mesh.num_replicas() > 1 || s.mesh.edp() > 1; }
bool is_even(const Known& k) {
  const int64_t stages = k.strategy->mesh.num_virtual_stages();
  return k.model->num_layers() % stages == 0 &&
         (k.strategy->layers_per_stage.empty() ||
          k.strategy->layers_per_stage == strategy::even_split(k.model->num_layers(), stages));
}

std::vector<std::string> scores() { return {"softmax", "sigmoid"}; }

constexpr auto kFacts = std::to_array<Fact>({
    // --- the model ---
    {"layers", kGiven, kCount, [](const Known& k) { return k.model->num_layers(); }},
    {"mixture_layers", kGiven, kCount, [](const Known& k) { return k.model->num_moe_layers(); }},
    {"experts", kGiven, kCount,
     [](const Known& k) { return of_mixture(k, [](auto& f) { return f.num_experts; }); }},
    {"top_k", kGiven, kCount,
     [](const Known& k) { return of_mixture(k, [](auto& f) { return f.top_k; }); }},
    {"score", kGiven, kWord,
     [](const Known& k) { return of_mixture(k, [](auto& f) { return f.score; }); }, scores},
    {"normalises_top_k", kGiven, kYesNo,
     [](const Known& k) { return of_mixture(k, [](auto& f) { return f.normalise_top_k; }); }},
    {"selection_bias", kGiven, kYesNo,
     [](const Known& k) { return of_mixture(k, [](auto& f) { return f.selection_bias; }); }},
    {"router_bias", kGiven, kYesNo,
     [](const Known& k) { return of_mixture(k, [](auto& f) { return f.router_bias; }); }},
    {"expert_groups", kGiven, kCount,
     [](const Known& k) { return of_mixture(k, [](auto& f) { return f.num_groups; }); }},
    {"top_groups", kGiven, kCount,
     [](const Known& k) { return of_mixture(k, [](auto& f) { return f.top_groups; }); }},
    {"shared_experts", kGiven, kYesNo,
     [](const Known& k) { return of_mixture(k, [](auto& f) { return f.shared_ffn > 0; }); }},
    {"shared_gate", kGiven, kYesNo,
     [](const Known& k) { return of_mixture(k, [](auto& f) { return f.shared_gate; }); }},
    {"expert_bias", kGiven, kYesNo,
     [](const Known& k) { return of_mixture(k, [](auto& f) { return f.expert_bias; }); }},
    {"dense_beside_mixture", kGiven, kYesNo,
     [](const Known& k) {
       return int64_t{
           any_layer(k, [](const Layer& l) { return l.feed_forward.parallel_dense_ffn > 0; })};
     }},
    {"output_bias", kGiven, kYesNo,
     [](const Known& k) {
       return int64_t{any_layer(k, [](const Layer& l) { return l.attention.output_bias; })};
     }},
    {"heads", kGiven, kCount,
     [](const Known& k) {
       return common_of_layers(k, [](const Layer& l) { return l.attention.num_heads; });
     }},
    {"key_heads", kGiven, kCount,
     [](const Known& k) {
       return common_of_layers(k, [](const Layer& l) { return l.attention.num_kv_heads; });
     }},
    {"latent_attention", kGiven, kYesNo,
     [](const Known& k) {
       return int64_t{any_layer(
           k, [](const Layer& l) { return l.attention.kind == AttentionKind::kLatent; })};
     }},
    {"linear_attention", kGiven, kYesNo,
     [](const Known& k) {
       return int64_t{any_layer(
           k, [](const Layer& l) { return l.attention.kind == AttentionKind::kGatedDelta; })};
     }},
    {"linear_key_heads", kGiven, kCount,
     [](const Known& k) {
       return common_of_layers(k, [](const Layer& l) { return l.attention.delta.key_heads; });
     }},
    {"linear_value_heads", kGiven, kCount,
     [](const Known& k) {
       return common_of_layers(k, [](const Layer& l) { return l.attention.delta.value_heads; });
     }},
    {"sparse_attention", kGiven, kYesNo,
     [](const Known& k) {
       return int64_t{any_layer(k, [](const Layer& l) { return l.attention.indexer.is_used(); })};
     }},
    {"sinks", kGiven, kYesNo,
     [](const Known& k) {
       return int64_t{any_layer(k, [](const Layer& l) { return l.attention.sinks; })};
     }},
    {"window", kGiven, kCount,
     [](const Known& k) {
       return most_of_layers(k, [](const Layer& l) { return l.attention.window; });
     }},
    {"learned_positions", kGiven, kYesNo,
     [](const Known& k) { return int64_t{k.model->learned_positions > 0}; }},
    {"tied_embeddings", kGiven, kYesNo,
     [](const Known& k) { return int64_t{k.model->tied_embeddings}; }},
    // --- the machine ---
    {"compute_capability", kGiven, kCount,
     [](const Known& k) {
       return k.machine == nullptr ? int64_t{0} : compute_capability(k.machine->device);
     }},
    {"devices_per_node", kGiven, kCount,
     [](const Known& k) {
       return k.machine == nullptr ? int64_t{0} : k.machine->devices_per_node();
     }},
    // --- the profile: percent of what its price hides behind compute ---
    {"hides_gradients", kGiven, kCount,
     [](const Known& k) { return percent(k.trainer->hidden_gradients); }},
    {"hides_tensor", kGiven, kCount,
     [](const Known& k) { return percent(k.trainer->hidden_tensor); }},
    {"hides_messages", kGiven, kCount,
     [](const Known& k) { return percent(k.trainer->hidden_messages); }},
    {"hides_exchange", kGiven, kCount,
     [](const Known& k) { return percent(k.trainer->hidden_exchange); }},
    // --- the strategy ---
    {"sequence", kGiven, kCount, [](const Known& k) { return k.strategy->sequence; }},
    {"precision", kGiven, kWord, [](const Known& k) { return index(k.strategy->precision); },
     names_of<strategy::Precision>},
    {"capacity", kGiven, kYesNo,
     [](const Known& k) { return int64_t{k.strategy->capacity.is_limited()}; }},
    {"pads", kGiven, kYesNo, [](const Known& k) { return int64_t{k.strategy->capacity.pads}; }},
    {"mtp_depth", kGiven, kCount,
     [](const Known& k) { return std::max(k.strategy->mtp_depth, k.model->mtp_depth); }},
    {"pp", kShape, kCount, [](const Known& k) { return k.strategy->mesh.pp; }},
    {"ep", kShape, kCount, [](const Known& k) { return k.strategy->mesh.ep; }},
    {"dp", kShape, kCount, [](const Known& k) { return k.strategy->mesh.dp; }},
    {"etp", kShape, kCount, [](const Known& k) { return k.strategy->mesh.etp; }},
    {"tp", kShape, kCount, [](const Known& k) { return k.strategy->mesh.tp; }},
    {"cp", kShape, kCount, [](const Known& k) { return k.strategy->mesh.cp; }},
    {"context_parts", kShape, kCount, [](const Known& k) { return 2 * k.strategy->mesh.cp; }},
    {"ranks_per_sequence", kShape, kCount,
     [](const Known& k) { return k.strategy->mesh.ranks_per_sequence(); }},
    {"ranks_per_expert_set", kShape, kCount,
     [](const Known& k) { return k.strategy->mesh.ranks_per_expert_set(); }},
    {"has_replicas", kShape, kYesNo,
     [](const Known& k) { return int64_t{has_replicas(*k.strategy)}; }},
    {"sequence_parallel", kShape, kYesNo,
     [](const Known& k) { return int64_t{k.strategy->sequence_parallel}; }},
    {"micro_batch", kShape, kCount,
     [](const Known& k) { return k.strategy->micro_batch_sequences; }},
    {"micro_batches", kShape, kCount,
     [](const Known& k) { return k.strategy->num_micro_batches; }},
    // In which PyTorch's interleaved schedule runs them.
    {"micro_batch_rounds", kShape, kCount,
     [](const Known& k) {
       return std::max<int64_t>(1, k.strategy->num_micro_batches / k.strategy->mesh.pp);
     }},
    {"context_exchange", kShape, kWord,
     [](const Known& k) { return index(k.strategy->context_exchange); },
     names_of<strategy::ContextExchange>},
    {"schedule", kSchedule, kWord, [](const Known& k) { return index(k.strategy->schedule); },
     names_of<strategy::PipelineSchedule>},
    {"pairs", kSchedule, kYesNo,
     [](const Known& k) { return int64_t{strategy::pairs(k.strategy->schedule)}; }},
    // Whether the price hides exchanges with experts behind compute, of another micro-batch or not.
    {"overlaps_exchange", kSchedule, kYesNo,
     [](const Known& k) {
       return int64_t{k.strategy->mesh.ep > 1 && k.model->num_moe_layers() > 0 &&
                      (strategy::pairs(k.strategy->schedule) || k.trainer->hidden_exchange > 0)};
     }},
    {"vpp", kChunks, kCount, [](const Known& k) { return k.strategy->mesh.vpp; }},
    {"virtual_stages", kChunks, kCount,
     [](const Known& k) { return k.strategy->mesh.num_virtual_stages(); }},
    // Some number of layers a stage, rounded up, makes as many virtual stages.
    {"chunks_from_layers", kChunks, kYesNo,
     [](const Known& k) {
       return int64_t{strategy::layers_that_make(k.strategy->mesh.num_virtual_stages(),
                                                 k.model->num_layers()) > 0};
     }},
    {"recompute", kLayers, kWord, [](const Known& k) { return index(k.strategy->recompute); },
     names_of<strategy::Recompute>},
    // On any stage.
    {"full_recompute", kLayers, kYesNo,
     [](const Known& k) { return int64_t{is_full_anywhere(*k.strategy)}; }},
    // Every virtual stage has as many layers.
    {"even_layers", kLayers, kYesNo, [](const Known& k) { return int64_t{is_even(k)}; }},
    {"zero", kZero, kCount, [](const Known& k) { return k.strategy->zero; }},
    {"offload", kOffload, kWord, [](const Known& k) { return index(k.strategy->offload); },
     names_of<strategy::Offload>},
    {"offload_optimizer", kOffload, kYesNo,
     [](const Known& k) { return int64_t{strategy::offloads_optimizer(k.strategy->offload)}; }},
    {"placement", kPlacement, kWord, [](const Known& k) { return index(k.strategy->placement); },
     names_of<strategy::Placement>},
    {"exchange", kLast, kWord, [](const Known& k) { return index(k.strategy->all_to_all); },
     names_of<strategy::AllToAll>},
    {"moe_schedule", kLast, kWord, [](const Known& k) { return index(k.strategy->moe_schedule); },
     names_of<strategy::MoeSchedule>},
    {"reduction", kLast, kWord, [](const Known& k) { return index(k.strategy->reduction); },
     names_of<strategy::Reduction>},
    {"reduction_start", kLast, kWord,
     [](const Known& k) { return index(k.strategy->reduction_start); },
     names_of<strategy::ReductionStart>},
    {"redundant_experts", kLast, kCount,
     [](const Known& k) { return k.strategy->redundant_experts; }},
    {"expert_compression", kLast, kCount,
     [](const Known& k) { return k.strategy->expert_compression; }},
});

}  // namespace

std::string Fact::text_of(int64_t value) const {
  switch (kind) {
    case kYesNo:
      return value != 0 ? "yes" : "no";
    case kWord:
      return words().at(static_cast<size_t>(value));
    case kCount:
      break;
  }
  return std::to_string(value);
}

std::span<const Fact> facts() { return kFacts; }

const Fact* find_fact(std::string_view name) {
  const auto found = std::ranges::find(kFacts, name, [](const Fact& f) { return f.name; });
  return found == kFacts.end() ? nullptr : &*found;
}

int64_t compute_capability(std::string_view device) {
  constexpr auto kDevices = std::to_array<std::pair<std::string_view, int64_t>>({{"A100", 80},
                                                                                 {"A800", 80},
                                                                                 {"H100", 90},
                                                                                 {"H200", 90},
                                                                                 {"H800", 90},
                                                                                 {"H20", 90},
                                                                                 {"B200", 100},
                                                                                 {"B300", 103},
                                                                                 {"GB200", 100},
                                                                                 {"GB300", 103},
                                                                                 {"RTX 2080", 75},
                                                                                 {"RTX 4090", 89}});
  for (const auto& [name, capability] : kDevices)
    if (device.starts_with(name)) return capability;
  return 0;
}

}  // namespace piper::cost
