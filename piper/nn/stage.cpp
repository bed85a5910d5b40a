#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/model/trainable.h>
#include <piper/nn/experts_grouped.h>
#include <piper/nn/experts_tokens.h>
#include <piper/nn/fused_attention.h>
#include <piper/nn/product.h>
#include <piper/nn/stage.h>
#include <piper/nn/stage_weights.h>
#include <piper/nn/tensor_ops.h>
#include <piper/schedule/rank_chunks.h>
#include <piper/strategy/divided_states.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/runnable.h>
#include <piper/strategy/token_chunk.h>

#include <utility>

namespace piper::nn {
namespace {

// Segments differentiate by hand: no autograd dispatch, no version counters.
using NoAutograd = at::AutoDispatchBelowADInplaceOrView;

class ModelStage final : public Stage {
 public:
  ModelStage(const model::Model& model, const StageShare& share, const strategy::Strategy& strategy,
             const StageOptions& options)
      : model_(model),
        options_(options),
        share_(share),
        sequence_(strategy.sequence),
        blocks_(declare_weights(model, share, store_, copies_)) {
    store_.allocate(options.dtype, options.device, [&](int32_t layer, strategy::Axis axis) {
      return strategy::divides_gradients(strategy, model, layer) &&
             strategy::RankLayout(strategy).size(axis) > 1;
    });
    copies_.allocate(options.dtype, options.device);
    store_.initialise(options.seed, model.initializer_range);
    blocks_.head.scale = 1.0 / static_cast<double>(options.global_target_tokens);
    const auto sequences = static_cast<double>(options.global_sequences);
    for (auto& [layer, block] : blocks_.layers) {
      block.gate.auxiliary = loss_share(layer) * model.layer_aux_coefficient() / sequences;
      block.gate.z_loss = loss_share(layer) * model.router_z_coefficient / sequences;
      block.gate.capacity = strategy.capacity;
      block.gate.deduplicated = strategy::deduplicates(strategy);
    }
    for (auto& [layer, block] : blocks_.modules)
      block.head.scale = loss_share(layer) / static_cast<double>(targets_of(block));
    if (!options.device.is_cpu()) try_fused_kernels();
  }

  at::Tensor embedding_forward(const at::Tensor& tokens_BS) override {
    const NoAutograd guard;
    PIPER_CHECK(blocks_.embedding != nullptr, "the first stage embeds");
    return nn::embedding_forward(*blocks_.embedding, held(tokens_BS));
  }
  void embedding_backward(const at::Tensor& tokens_BS, const at::Tensor& gx_TD) override {
    const NoAutograd guard;
    nn::embedding_backward(*blocks_.embedding, own(tokens_BS), own_of_held(gx_TD));
  }

  at::Tensor attention_forward(int32_t layer, const at::Tensor& x_TD, int64_t sequence,
                               Tape* tape) override {
    const NoAutograd guard;
    LayerBlocks& blocks = at(layer);
    if (blocks.latent.output != nullptr)
      return latent_attention_forward(
          blocks.latent, rope(blocks.latent.shape.rope_head_dim, sequence), x_TD, sequence, tape);
    return nn::attention_forward(blocks.attention, rope(blocks.attention.shape.head_dim, sequence),
                                 x_TD, sequence, tape);
  }
  at::Tensor attention_backward(int32_t layer, const at::Tensor& gx1_TD, const at::Tensor& x_TD,
                                const at::Tensor&, int64_t sequence, Tape& tape) override {
    const NoAutograd guard;
    LayerBlocks& blocks = at(layer);
    if (blocks.latent.output != nullptr)
      return latent_attention_backward(blocks.latent,
                                       rope(blocks.latent.shape.rope_head_dim, sequence), gx1_TD,
                                       x_TD, sequence, tape);
    return nn::attention_backward(blocks.attention, rope(blocks.attention.shape.head_dim, sequence),
                                  gx1_TD, x_TD, sequence, tape);
  }

  Projection projection_forward(int32_t layer, const at::Tensor& x_TD, int64_t sequence,
                                Tape* tape) override {
    const NoAutograd guard;
    LayerBlocks& blocks = at(layer);
    const int64_t own_sequence = sequence / share_.context.count;
    if (blocks.latent.output != nullptr)
      return latent_projection_forward(blocks.latent, own_rope(blocks, sequence), x_TD,
                                       own_sequence, tape);
    return nn::projection_forward(blocks.attention, own_rope(blocks, sequence), x_TD, own_sequence,
                                  tape);
  }
  at::Tensor projection_backward(int32_t layer, const Projection& g, const at::Tensor& gx1_TD,
                                 const at::Tensor& x_TD, int64_t sequence, Tape& tape) override {
    const NoAutograd guard;
    LayerBlocks& blocks = at(layer);
    const int64_t own_sequence = sequence / share_.context.count;
    if (blocks.latent.output != nullptr)
      return latent_projection_backward(blocks.latent, own_rope(blocks, sequence), g, gx1_TD, x_TD,
                                        own_sequence, tape);
    return nn::projection_backward(blocks.attention, own_rope(blocks, sequence), g, gx1_TD, x_TD,
                                   own_sequence, tape);
  }
  at::Tensor context_attention_forward(int32_t layer, const at::Tensor& x_TD,
                                       const Projection& of_all, int64_t sequence,
                                       Tape* tape) override {
    const NoAutograd guard;
    LayerBlocks& blocks = at(layer);
    const int64_t own_sequence = sequence / share_.context.count;
    if (blocks.latent.output != nullptr)
      return latent_attention_forward(blocks.latent, share_.context, x_TD, of_all, own_sequence,
                                      tape);
    return nn::attention_forward(blocks.attention, share_.context, x_TD, of_all, own_sequence,
                                 tape);
  }
  Projection context_attention_backward(int32_t layer, const at::Tensor& gx1_TD,
                                        const Projection& of_all, int64_t sequence,
                                        Tape& tape) override {
    const NoAutograd guard;
    LayerBlocks& blocks = at(layer);
    const int64_t own_sequence = sequence / share_.context.count;
    if (blocks.latent.output != nullptr)
      return latent_attention_backward(blocks.latent, share_.context, gx1_TD, of_all, own_sequence,
                                       tape);
    return nn::attention_backward(blocks.attention, share_.context, gx1_TD, of_all, own_sequence,
                                  tape);
  }

  HeadOutputs ring_step_forward(int32_t layer, int64_t hop, const Projection& p,
                                const HeadOutputs& before, int64_t sequence) override {
    const NoAutograd guard;
    LayerBlocks& blocks = at(layer);
    const RingStep step{share_.context, hop};
    const int64_t own_sequence = sequence / share_.context.count;
    if (blocks.latent.output != nullptr)
      return latent_ring_step_forward(blocks.latent, step, p, before, own_sequence);
    return nn::ring_step_forward(blocks.attention, step, p, before, own_sequence);
  }
  at::Tensor ring_attention_forward(int32_t layer, const at::Tensor& x_TD,
                                    const HeadOutputs& outputs, HeadOutputs& kept) override {
    const NoAutograd guard;
    LayerBlocks& blocks = at(layer);
    if (blocks.latent.output != nullptr)
      return nn::ring_attention_forward(blocks.latent.share, *blocks.latent.output, nullptr, x_TD,
                                        outputs, kept);
    const AttentionBlock& of = blocks.attention;
    return nn::ring_attention_forward(of.share, *of.output, of.output_bias, x_TD, outputs, kept);
  }
  at::Tensor ring_attention_backward(int32_t layer, const at::Tensor& gx1_TD,
                                     const HeadOutputs& kept, Tape& tape) override {
    const NoAutograd guard;
    LayerBlocks& blocks = at(layer);
    if (blocks.latent.output != nullptr)
      return nn::ring_attention_backward(blocks.latent.share, *blocks.latent.output, nullptr,
                                         gx1_TD, kept, tape);
    const AttentionBlock& of = blocks.attention;
    return nn::ring_attention_backward(of.share, *of.output, of.output_bias, gx1_TD, kept, tape);
  }
  Projection ring_step_backward(int32_t layer, int64_t hop, const at::Tensor& g_out,
                                const Projection& p, const HeadOutputs& kept,
                                const at::Tensor& g_queries, int64_t sequence) override {
    const NoAutograd guard;
    LayerBlocks& blocks = at(layer);
    const RingStep step{share_.context, hop};
    const int64_t own_sequence = sequence / share_.context.count;
    if (blocks.latent.output != nullptr)
      return latent_ring_step_backward(blocks.latent, step, g_out, p, kept, g_queries,
                                       own_sequence);
    return nn::ring_step_backward(blocks.attention, step, g_out, p, kept, g_queries, own_sequence);
  }

  at::Tensor dense_mlp_forward(int32_t layer, const at::Tensor& x1_TD, Tape* tape) override {
    const NoAutograd guard;
    return nn::dense_mlp_forward(at(layer).dense_mlp, x1_TD, tape);
  }
  at::Tensor dense_mlp_backward(int32_t layer, const at::Tensor& gx_TD, const at::Tensor& x1_TD,
                                Tape& tape) override {
    const NoAutograd guard;
    return nn::dense_mlp_backward(at(layer).dense_mlp, gx_TD, x1_TD, tape);
  }

  at::Tensor shared_forward(int32_t layer, const at::Tensor& x1_TD, Tape* tape) override {
    const NoAutograd guard;
    return nn::dense_mlp_forward(at(layer).dense_mlp, routed(x1_TD), tape);
  }
  at::Tensor shared_backward(int32_t layer, const at::Tensor& gx_TD, const at::Tensor& x1_TD,
                             Tape& tape) override {
    const NoAutograd guard;
    return nn::dense_mlp_backward(at(layer).dense_mlp, routed(gx_TD), routed(x1_TD), tape);
  }

  at::Tensor choose_forward(int32_t layer, const at::Tensor& x1_TD) override {
    const NoAutograd guard;
    return nn::choose_forward(at(layer).gate, routed(x1_TD));
  }
  std::vector<at::Tensor> gate_forward(int32_t layer, const at::Tensor& x1_TD,
                                       const at::Tensor& choices, int64_t sequence,
                                       std::span<Routing> chunks, Tape* tape) override {
    const NoAutograd guard;
    const at::Tensor routed_TD = routed(x1_TD);
    GateOutput out =
        nn::gate_forward(at(layer).gate, routed_TD, choices, sequence, chunks, tape,
                         chunks.size() == 1 && counts_stay(at(layer), routed_TD, choices));
    for (Routing& routing : chunks)
      if (share_.ep == 1) routing.received_counts = routing.counts;
    // Among ranks that route the same tokens only the first counts them.
    if (tape != nullptr && at(layer).gate.counted.index == 0)
      count_routing(layer, out, at(layer).gate.places);
    return std::move(out.rows);
  }
  at::Tensor gate_backward(int32_t layer, const std::vector<at::Tensor>& g_rows,
                           const std::vector<at::Tensor>& g_weights, const at::Tensor& gx_TD,
                           const at::Tensor& x1_TD, const Routings& chunks, Tape& tape) override {
    const NoAutograd guard;
    GateGradient g = nn::gate_backward(at(layer).gate, g_rows, g_weights,
                                       routed_residual(layer, gx_TD), routed(x1_TD), chunks, tape);
    if (at(layer).gate.counted.index == 0) sums_.auxiliary_loss += g.auxiliary_loss;
    return std::move(g.x1);
  }

  at::Tensor experts_forward(int32_t layer, const at::Tensor& received_RD, const Routing& routing,
                             Tape* tape) override {
    const NoAutograd guard;
    if (routing.deduplicated)
      return token_experts_forward(at(layer).experts, received_RD, routing, tape);
    return nn::experts_forward(at(layer).experts, received_RD, routing, tape);
  }
  at::Tensor experts_backward(int32_t layer, const at::Tensor& g_out_RD,
                              const at::Tensor& received_RD, const Routing& routing,
                              Tape& tape) override {
    const NoAutograd guard;
    if (routing.deduplicated)
      return token_experts_backward(at(layer).experts, g_out_RD, received_RD, routing, tape);
    return nn::experts_backward(at(layer).experts, g_out_RD, received_RD, routing, tape);
  }

  at::Tensor merge_forward(int32_t layer, const std::vector<at::Tensor>& returned,
                           const Routings& chunks, const at::Tensor& x1_TD) override {
    const NoAutograd guard;
    const at::Tensor residual_TD = routed_residual(layer, x1_TD);
    if (chunks.front()->deduplicated) return returned.front() + residual_TD;
    at::Tensor x_TD = at::empty_like(residual_TD);
    for_each_chunk(chunks, at(layer).gate.gathered,
                   [&](size_t c, int64_t first, const at::Tensor& position) {
                     const at::Tensor sum_TD = x_TD.narrow(0, first, position.size(0));
                     const bool adds = c > 0 && chunks[c]->of_all_tokens;
                     merge_out(sum_TD, returned[c], chunks[c]->weights, position,
                               adds ? sum_TD : residual_TD.narrow(0, first, position.size(0)));
                   });
    return x_TD;
  }
  std::vector<MergeGradients> merge_backward(int32_t, const at::Tensor& gx_TD,
                                             const std::vector<at::Tensor>& returned,
                                             const Routings& chunks) override {
    const NoAutograd guard;
    const at::Tensor routed_gx_TD = routed(gx_TD);
    if (chunks.front()->deduplicated) return {{routed_gx_TD, {}}};
    std::vector<MergeGradients> gradients;
    for_each_chunk(chunks, {}, [&](size_t c, int64_t first, const at::Tensor& position) {
      const at::Tensor& weights = chunks[c]->weights;
      MergeGradients& g = gradients.emplace_back(
          at::empty({chunks[c]->token.size(0), returned[c].size(1)}, returned[c].options()),
          at::empty_like(weights));
      if (chunks[c]->is_padded) g.returned.zero_();
      // The gradient of a copy's part (GateBlock::copies).
      merge_backward_out(g.returned, g.weights, routed_gx_TD.narrow(0, first, position.size(0)),
                         returned[c], share_.copies > 1 ? weights / share_.copies : weights,
                         position, chunks[c]->first_own_row);
    });
    return gradients;
  }

  void head_forward(const at::Tensor& x_TD, const at::Tensor& targets_T, Tape* tape) override {
    const NoAutograd guard;
    PIPER_CHECK(blocks_.head.table != nullptr, "the last stage has the head");
    const HeadLoss loss =
        nn::head_forward(blocks_.head, own_of_held(x_TD), own(by_sequence(targets_T)), tape);
    sums_.loss += loss.sum;
    sums_.target_tokens += loss.target_tokens;
  }
  at::Tensor head_backward(const at::Tensor& x_TD, const at::Tensor&, Tape& tape) override {
    const NoAutograd guard;
    return nn::head_backward(blocks_.head, own_of_held(x_TD), tape);
  }
  at::Tensor logits(const at::Tensor& x_TD) override {
    const NoAutograd guard;
    return head_logits(blocks_.head, x_TD);
  }

  at::Tensor mtp_join_forward(int32_t layer, const at::Tensor& x_TD,
                              const at::Tensor& tokens_BS) override {
    const NoAutograd guard;
    return nn::mtp_join_forward(module(layer), x_TD, later_held_tokens(layer, tokens_BS));
  }
  at::Tensor mtp_join_backward(int32_t layer, const at::Tensor& g_input_TD,
                               const at::Tensor& g_x_TD, const at::Tensor& x_TD,
                               const at::Tensor& tokens_BS, Tape& tape) override {
    const NoAutograd guard;
    return nn::mtp_join_backward(module(layer), g_input_TD, g_x_TD, x_TD,
                                 later_held_tokens(layer, tokens_BS), tape);
  }
  void mtp_head_forward(int32_t layer, const at::Tensor& x_TD, const at::Tensor& targets_T,
                        Tape* tape) override {
    const NoAutograd guard;
    MtpBlock& block = module(layer);
    const at::Tensor later_T = mtp_targets(targets_T, targets_T.numel() / sequence_, block.depth);
    const HeadLoss loss =
        nn::head_forward(block.head, own_of_held(x_TD), own(by_sequence(later_T)), tape);
    sums_.mtp_loss += loss.sum / static_cast<double>(model_.mtp_depth * targets_of(block));
  }
  at::Tensor mtp_head_backward(int32_t layer, const at::Tensor& x_TD, Tape& tape) override {
    const NoAutograd guard;
    return nn::head_backward(module(layer).head, own_of_held(x_TD), tape);
  }

  void weights_backward(Tape& tape) override {
    const NoAutograd guard;
    run_deferred(tape);
  }

  std::vector<Parameter>& parameters() override {
    store_.settle();
    return store_.parameters();
  }
  std::vector<NamedPiece> named_pieces() override {
    store_.settle();
    return store_.pieces();
  }
  void zero_gradients() override {
    store_.reset();
    copies_.reset();
  }
  at::Tensor gradients(int32_t layer, strategy::Axis replicas) override {
    return (is_of_copies(replicas) ? copies_ : store_).gradients(layer, replicas);
  }
  at::Tensor hold_gradients(int32_t layer, strategy::Axis replicas) override {
    return store_.hold_gradients(layer, replicas);
  }
  void release_gradients(int32_t layer, strategy::Axis replicas) override {
    store_.release_gradients(layer, replicas);
  }
  at::Tensor hold_weights(int32_t layer, strategy::Axis replicas) override {
    return store_.hold_values(layer, replicas);
  }
  void release_weights(int32_t layer, strategy::Axis replicas) override {
    store_.release_values(layer, replicas);
  }
  at::Tensor weights(int32_t layer, strategy::Axis replicas) override {
    return (is_of_copies(replicas) ? copies_ : store_).values(layer, replicas);
  }
  at::Tensor tied_embedding_gradient() override {
    if (!model_.shares_embedding() || share_.first_stage == share_.last_stage) return {};
    store_.settle();
    const Weight* table = blocks_.embedding != nullptr ? blocks_.embedding : blocks_.head.table;
    return table->gradient;
  }
  at::Tensor selection_bias(int32_t layer) override {
    const auto found = blocks_.layers.find(layer);
    if (found == blocks_.layers.end() || found->second.gate.bias == nullptr) return {};
    return found->second.gate.bias->value;
  }
  void place_experts(int32_t layer, const balance::ExpertPlacement& placement) override {
    const auto found = blocks_.layers.find(layer);
    if (found == blocks_.layers.end()) return;
    StageShare share = share_;
    share.placements = {{layer, placement}};
    const int64_t num_experts = model_.layers[static_cast<size_t>(layer)].feed_forward.num_experts;
    nn::place_experts(model_, layer, share_, placement_of(share, layer, num_experts), found->second,
                      store_);
  }
  std::vector<size_t> expert_parameters(int32_t layer) override {
    const auto found = blocks_.layers.find(layer);
    if (found == blocks_.layers.end() || found->second.experts.gate_up == nullptr) return {};
    const ExpertsBlock& experts = found->second.experts;
    return {store_.index_of(experts.gate_up), store_.index_of(experts.down)};
  }
  StageStatistics take_statistics() override {
    const Sums sums = std::exchange(sums_, {});
    std::vector<at::Tensor> counts_there;
    for (const auto& [layer, counts_2E] : counts_there_)
      counts_there.push_back(counts_2E.reshape({-1}));
    const std::vector<double> read =
        read_all({sums.loss, sums.target_tokens, sums.auxiliary_loss, sums.z_loss, sums.mtp_loss},
                 counts_there);
    statistics_.loss_sum = read[0];
    statistics_.target_tokens = static_cast<int64_t>(read[1]);
    statistics_.auxiliary_loss = read[2];
    statistics_.z_loss = read[3];
    statistics_.mtp_loss = read[4];
    auto next = read.begin() + 5;
    for (const auto& [layer, counts_2E] : std::exchange(counts_there_, {}))
      for (auto* sum : {&statistics_.expert_counts[layer], &statistics_.expert_rows[layer]}) {
        const auto begin = std::exchange(next, next + counts_2E.size(1));
        add(*sum, {begin, next});
      }
    return std::exchange(statistics_, {});
  }

 private:
  // Takes this rank's own tokens or targets from those of whole sequences.
  at::Tensor own(const at::Tensor& of_all_BS) const {
    return share_.tensor.own(share_.context.own(of_all_BS).reshape({-1}));
  }
  // Takes those that this rank's hidden states between the blocks are of.
  at::Tensor held(const at::Tensor& of_all_BS) const {
    return share_.divides_tokens ? own(of_all_BS) : share_.context.own(of_all_BS).reshape({-1});
  }
  at::Tensor later_held_tokens(int32_t layer, const at::Tensor& tokens_BS) {
    return held(later_tokens(tokens_BS, module(layer).depth));
  }
  at::Tensor by_sequence(const at::Tensor& of_all_T) const {
    return share_.context.count == 1 ? of_all_T : of_all_T.view({-1, sequence_});
  }
  // Takes this rank's own tokens from the hidden states between the blocks.
  at::Tensor own_of_held(const at::Tensor& x_TD) const {
    return share_.divides_tokens ? x_TD : share_.tensor.own(x_TD);
  }
  // Takes from the same what a mixture layer routes here: Parm's S1 routes only a share.
  at::Tensor routed(const at::Tensor& x_TD) const {
    return share_.divides_routed && !share_.divides_tokens ? share_.tensor.own(x_TD) : x_TD;
  }
  // Behind shared experts they are routed tokens already.
  at::Tensor routed_residual(int32_t layer, const at::Tensor& x_TD) {
    return at(layer).dense_mlp.gate_up != nullptr ? x_TD : routed(x_TD);
  }

  LayerBlocks& at(int32_t layer) {
    const auto found = blocks_.layers.find(layer);
    PIPER_CHECK(found != blocks_.layers.end(), fmt::format("layer {} is not on this stage", layer));
    return found->second;
  }

  MtpBlock& module(int32_t layer) {
    const auto found = blocks_.modules.find(layer);
    PIPER_CHECK(found != blocks_.modules.end(), fmt::format("module {} is not here", layer));
    return found->second;
  }

  // Finds out what libtorch has on the stage's device for the shapes of its layers.
  void try_fused_kernels() const {
    if (options_.dtype == at::kBFloat16) try_main_products(options_.device);
    for (const auto& [layer, block] : blocks_.layers) {
      const bool is_latent = block.latent.output != nullptr;
      const model::LatentAttention& latent = block.latent.shape;
      const model::Attention& plain = block.attention.shape;
      FusedShape shape{.dtype = options_.dtype};
      shape.key_width = is_latent ? latent.nope_head_dim + latent.rope_head_dim : plain.head_dim;
      shape.value_width = shape.key_width;  // latent attention's values are padded to it
      if (!is_latent) shape.queries_per_key = plain.num_heads / plain.num_kv_heads;
      try_fused_attention(options_.device, shape);
      if (block.experts.gate_up != nullptr) try_grouped_products(options_.device, options_.dtype);
    }
  }

  // What a layer's own losses count: the modules' of multi-token prediction share their weight.
  double loss_share(int32_t layer) const {
    return model_.mtp_depth_of(layer) == 0
               ? 1
               : options_.mtp_weight / static_cast<double>(model_.mtp_depth);
  }

  int64_t targets_of(const MtpBlock& block) const {
    return options_.mtp_target_tokens.at(static_cast<size_t>(block.depth - 1));
  }

  // Angles for positions 0 .. sequence - 1 (at least); one table for each head size, grown when
  // longer text comes.
  const RopeTable& rope(int64_t head_dim, int64_t sequence) {
    RopeTable& table = rope_[head_dim];
    if (!table.cosine.defined() || table.cosine.size(0) < sequence)
      table = make_rope_table(sequence, head_dim, model_.rope, main_type(options_.dtype),
                              options_.device);
    return table;
  }

  // Those of the positions of own tokens alone, in their order.
  const RopeTable& own_rope(const LayerBlocks& blocks, int64_t sequence) {
    const int64_t head_dim = blocks.latent.output != nullptr ? blocks.latent.shape.rope_head_dim
                                                             : blocks.attention.shape.head_dim;
    RopeTable& table = own_rope_[{head_dim, sequence}];
    if (table.cosine.defined()) return table;
    const RopeTable& all = rope(head_dim, sequence);
    const auto own_rows = [&](const at::Tensor& angles) {
      return share_.context.own(angles.narrow(0, 0, sequence).unsqueeze(0)).squeeze(0).contiguous();
    };
    table = {
        .cosine = own_rows(all.cosine), .sine = own_rows(all.sine), .interleaved = all.interleaved};
    return table;
  }

  static bool is_of_copies(strategy::Axis replicas) { return replicas == strategy::Axis::kExpert; }

  // Whether nobody on the host asks for the rows of each expert: none are sent, and the product
  // takes their counts from the device.
  bool counts_stay(const LayerBlocks& of, const at::Tensor& x1_TD,
                   const at::Tensor& choices) const {
    const GateBlock& gate = of.gate;
    return share_.ep == 1 && share_.experts.count == 1 && gate.places.empty() &&
           gate.divided.count == 1 && !gate.deduplicated && !choices.defined() &&
           !gate.capacity.pads &&
           computes_grouped(of.experts, x1_TD.size(0) * gate.top_k, x1_TD.options());
  }

  static void add(std::vector<int64_t>& sum, const std::vector<int64_t>& counts) {
    sum.resize(counts.size());
    for (size_t e = 0; e < counts.size(); ++e) sum[e] += counts[e];
  }

  // Rows are by place, statistics by expert.
  void count_routing(int32_t layer, const GateOutput& out, const ExpertPlaces& places) {
    sums_.auxiliary_loss += out.auxiliary_loss;
    sums_.z_loss += out.z_loss;
    if (out.counts_there.defined()) {
      at::Tensor& sum_2E = counts_there_[layer];
      sum_2E = sum_2E.defined() ? sum_2E + out.counts_there : out.counts_there;
      return;
    }
    std::vector<int64_t> rows = out.rows_of_expert;
    if (!places.empty()) {
      rows.assign(out.chosen.size(), 0);
      for (size_t e = 0; e < rows.size(); ++e)
        for (auto i = static_cast<size_t>(places.first[e]);
             i < static_cast<size_t>(places.first[e + 1]); ++i)
          rows[e] += out.rows_of_expert[static_cast<size_t>(places.place[i])];
    }
    add(statistics_.expert_counts[layer], out.chosen);
    add(statistics_.expert_rows[layer], rows);
  }

  const model::Model model_;
  const StageOptions options_;
  const StageShare share_;
  const int64_t sequence_;
  ParameterStore store_, copies_;
  StageBlocks blocks_;
  std::map<int64_t, RopeTable> rope_;
  std::map<std::pair<int64_t, int64_t>, RopeTable> own_rope_;  // by head size and sequence
  StageStatistics statistics_;                                 // but for what these sum
  struct Sums {
    Amount loss, target_tokens, auxiliary_loss, z_loss, mtp_loss;
  } sums_;
  std::map<int32_t, at::Tensor> counts_there_;  // by layer, [2, E] (GateOutput)
};

}  // namespace

namespace {

[[noreturn]] void shares_no_sequence() {
  PIPER_CHECK(false, "a stage whose ranks share no sequence has no such segment");
}

}  // namespace

at::Tensor Stage::hold_gradients(int32_t, strategy::Axis) {
  PIPER_CHECK(false, "a stage that divides no gradients");
}
void Stage::release_gradients(int32_t, strategy::Axis) {
  PIPER_CHECK(false, "a stage that divides no gradients");
}
at::Tensor Stage::hold_weights(int32_t, strategy::Axis) {
  PIPER_CHECK(false, "a stage that divides no weights");
}
void Stage::release_weights(int32_t, strategy::Axis) {
  PIPER_CHECK(false, "a stage that divides no weights");
}
Stage::Projection Stage::projection_forward(int32_t, const at::Tensor&, int64_t, Tape*) {
  shares_no_sequence();
}
at::Tensor Stage::projection_backward(int32_t, const Projection&, const at::Tensor&,
                                      const at::Tensor&, int64_t, Tape&) {
  shares_no_sequence();
}
at::Tensor Stage::context_attention_forward(int32_t, const at::Tensor&, const Projection&, int64_t,
                                            Tape*) {
  shares_no_sequence();
}
Stage::Projection Stage::context_attention_backward(int32_t, const at::Tensor&, const Projection&,
                                                    int64_t, Tape&) {
  shares_no_sequence();
}

Stage::HeadOutputs Stage::ring_step_forward(int32_t, int64_t, const Projection&, const HeadOutputs&,
                                            int64_t) {
  shares_no_sequence();
}
at::Tensor Stage::ring_attention_forward(int32_t, const at::Tensor&, const HeadOutputs&,
                                         HeadOutputs&) {
  shares_no_sequence();
}
at::Tensor Stage::ring_attention_backward(int32_t, const at::Tensor&, const HeadOutputs&, Tape&) {
  shares_no_sequence();
}
Stage::Projection Stage::ring_step_backward(int32_t, int64_t, const at::Tensor&, const Projection&,
                                            const HeadOutputs&, const at::Tensor&, int64_t) {
  shares_no_sequence();
}

std::unique_ptr<Stage> make_stage(const model::Model& model, const strategy::Strategy& strategy,
                                  Rank rank, const StageOptions& options) {
  std::vector<std::string> problems = model::untrainable(model, strategy.sequence);
  const std::vector<std::string> not_divisible_by_tp =
      strategy::not_divisible_by_tp(strategy, model);
  problems.insert(problems.end(), not_divisible_by_tp.begin(), not_divisible_by_tp.end());
  if (!problems.empty()) throw InvalidInput(std::move(problems));
  PIPER_CHECK(std::ssize(options.mtp_target_tokens) >= model.mtp_depth,
              "a number of targets for every module of multi-token prediction");
  const strategy::Coordinates at = strategy::RankLayout(strategy).coordinates(rank);
  StageShare share{.ep_index = at.ep,
                   .ep = strategy.mesh.ep,
                   .tensor = {.index = at.tp, .count = strategy.mesh.tp},
                   .experts = {.index = at.etp, .count = strategy.mesh.etp},
                   .context = {.index = at.cp, .count = strategy.mesh.cp},
                   .divides_tokens = strategy.sequence_parallel || strategy.mesh.tp == 1,
                   .divides_routed = !strategy::repeats_rows(strategy),
                   .divides_rows = strategy::divides_rows(strategy),
                   .gathers_tokens = strategy::ranks_per_gated_token_set(strategy) > 1,
                   .copies = strategy::copies_of_rows(strategy),
                   .peers = strategy::grouped_peers(strategy),
                   .first_stage = false,
                   .last_stage = false,
                   .placements = options.placements,
                   .redundant_experts = strategy.redundant_experts};
  for (const schedule::RankChunk& chunk : schedule::chunks_of(strategy, at.pp)) {
    for (int32_t i = 0; i < chunk.num_layers; ++i) share.layers.push_back(chunk.first_layer + i);
    share.first_stage |= chunk.is_first;
    share.last_stage |= chunk.is_last;
  }
  return std::make_unique<ModelStage>(model, share, strategy, options);
}

}  // namespace piper::nn
