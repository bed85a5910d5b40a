#include <piper/cost/rank_parameters.h>
#include <piper/model/count.h>
#include <piper/placement/rank_traffic.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/state_bytes.h>

#include <algorithm>
#include <map>

namespace piper::placement {
namespace {

using strategy::Members;
using strategy::Recompute;
using strategy::Strategy;

double of(int64_t count) { return static_cast<double>(count); }

// What one rank of a pipeline stage says in a step, axis by axis: bytes of a pair, or of a ring's
// hop.
struct StageBytes {
  std::array<double, kNumAxes> bytes{};
  double& operator[](Axis axis) { return bytes[static_cast<size_t>(axis)]; }
};

class Writer {
 public:
  Writer(const model::Model& model, const Strategy& s)
      : model_(model), s_(s), layout_(s), element_(of(strategy::element_bytes(s.precision))) {}

  std::vector<RankGroup> all() {
    std::vector<StageBytes> stages(static_cast<size_t>(s_.mesh.pp));
    const int64_t num_chunks = s_.mesh.num_virtual_stages();
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk)
      add_chunk(chunk, stages[static_cast<size_t>(stage_of(chunk))]);
    for (int64_t stage = 0; stage < s_.mesh.pp; ++stage) {
      StageBytes& bytes = stages[static_cast<size_t>(stage)];
      const int64_t n = layout_.num_members();
      for (int64_t member = 0; member < n; ++member) {
        for (const Axis axis : {Axis::kExpert, Axis::kExpertTensor, Axis::kTensor, Axis::kContext,
                                Axis::kData, Axis::kExpertData})
          add(axis, stage, member, layout_.members(axis, member), bytes);
      }
    }
    add_messages();
    add_ends();
    std::ranges::stable_sort(groups_, {}, &RankGroup::axis);
    return std::move(groups_);
  }

 private:
  int64_t stage_of(int64_t chunk) const {
    const int64_t pp = s_.mesh.pp;
    return strategy::is_v(s_.schedule) ? std::min(chunk, 2 * pp - 1 - chunk) : chunk % pp;
  }
  double micro_batches() const { return of(s_.num_micro_batches); }
  // Tokens of one micro-batch on one rank.
  double tokens() const { return of(s_.micro_batch_sequences * s_.sequence) / of(s_.mesh.cp); }
  // Bytes that cross one hop when a ring gathers or scatters a buffer of `bytes`.
  static double hop(double bytes, int64_t members) { return bytes * of(members - 1) / of(members); }

  void add_chunk(int64_t chunk, StageBytes& stage) {
    const int64_t first = strategy::first_layer(s_, chunk);
    const int64_t end = first + s_.layers_per_stage[static_cast<size_t>(chunk)];
    double divided = 0;  // parameters that tp divides
    for (int64_t layer = first; layer < end; ++layer)
      add_layer(layer, stage_of(chunk), stage, divided);
    const int64_t last = s_.mesh.num_virtual_stages() - 1;
    if (chunk == last)
      for (int64_t layer = model_.num_layers(); layer < std::ssize(model_.layers); ++layer)
        add_layer(layer, stage_of(chunk), stage, divided);
    const int64_t ends = strategy::ends_apart(s_) ? 2 : 1;
    if (chunk == 0) divided += of(cost::dense_parameters(model_, -1, ends));
    if (chunk == last) divided += of(cost::dense_parameters(model_, -2, ends));
    Strategy whole = s_;  // what tp divides is `divided`
    whole.mesh.tp = 1;
    const cost::RankParameters held = cost::rank_parameters(model_, whole, chunk);
    const double dense = of(held.dense) - divided * (1 - 1 / of(s_.mesh.tp));
    stage[Axis::kData] += reduced(dense, s_.mesh.num_replicas());
    stage[Axis::kExpertData] += reduced(of(held.experts), s_.mesh.edp(), strategy::sent_part(s_));
  }

  // Gradients, and with ZeRO the weights, of which `part` is sent, over a ring.
  double reduced(double parameters, int64_t replicas, double part = 1) const {
    constexpr double kWeight = 2;
    const double gradients = parameters * of(strategy::state_bytes(s_.precision).gradient);
    if (s_.zero == 0) return hop(2 * gradients, replicas);
    const double reduces = s_.zero >= 2 ? micro_batches() : 1;
    const double gathers = s_.zero == 3 ? 2 * micro_batches() : 1;
    return hop(reduces * gradients + gathers * kWeight * part * parameters, replicas);
  }

  void add_layer(int64_t index, int64_t stage_index, StageBytes& stage, double& divided) const {
    const model::Layer& layer = model_.layers[static_cast<size_t>(index)];
    const model::FeedForward& f = layer.feed_forward;
    const model::LayerParameters n = model::count_layer(model_, layer);
    divided += of(n.attention + n.shared_experts + n.dense_mlp);
    const bool again = s_.recompute_of(stage_index) == Recompute::kFull;
    const double state = tokens() * of(model_.hidden) * element_ * micro_batches();
    const double blocks = !f.is_moe() ? 2 : f.shared_ffn > 0 ? 1.5 : 1;
    const double times = (again ? 4 : 2) + (s_.sequence_parallel ? 3 : 2);
    stage[Axis::kTensor] += hop(times * blocks * state, s_.mesh.tp);
    // A ring passes keys and values on once more where attention is computed again; a gather that
    // has just run again serves the backward, too.
    const bool repeats_ring =
        strategy::has_ring(s_) && strategy::drops_attention(s_.recompute_of(stage_index));
    stage[Axis::kContext] += hop((repeats_ring ? 4 : 3) * of(s_.mesh.cp) * micro_batches() *
                                     element_ * tokens() * keys_and_values(layer.attention),
                                 s_.mesh.cp);
    if (!f.is_moe()) return;
    const double passes = again ? 3 : 2;
    const double rows = layer_rows(index) * of(model_.hidden) * element_ * micro_batches();
    stage[Axis::kExpert] += 2 * passes * rows / of(s_.mesh.ep);
    stage[Axis::kExpertTensor] += hop(2 * passes * rows * of(s_.mesh.etp), s_.mesh.etp);
    if (strategy::divides_rows(s_))
      stage[Axis::kTensor] += hop(passes * rows * of(s_.mesh.tp), s_.mesh.tp);
  }

 public:
  // Rows that a rank sends and keeps in one exchange of a mixture layer.
  double layer_rows(int64_t layer) const {
    const int64_t top_k = model_.layers[static_cast<size_t>(layer)].feed_forward.top_k;
    return tokens() / of(s_.mesh.tp) * of(top_k) * s_.capacity.balanced_part();
  }

 private:
  // Elements of one token on one rank.
  double keys_and_values(const model::Attention& a) const {
    const double heads = of(a.num_heads) / of(s_.mesh.tp);
    switch (a.kind) {
      case model::AttentionKind::kLatent:
        return heads *
               of(a.latent.nope_head_dim + a.latent.rope_head_dim + a.latent.value_head_dim);
      case model::AttentionKind::kGatedDelta:
        return of(a.delta.key_heads * a.delta.key_head_dim +
                  a.delta.value_heads * a.delta.value_head_dim) /
               of(s_.mesh.tp);
      case model::AttentionKind::kGrouped:
        break;
    }
    return std::max(of(a.num_kv_heads) / of(s_.mesh.tp), 1.0) * of(a.head_dim + a.value_dim());
  }

  // The member's group, once: by its first member.
  void add(Axis axis, int64_t stage, int64_t member, const Members& group, StageBytes& bytes) {
    if (group.first != member || group.size < 2 || bytes[axis] <= 0) return;
    RankGroup result{
        .axis = axis, .is_ring = axis != Axis::kExpert, .bytes = bytes[axis], .ranks = {}};
    for (int64_t i = 0; i < group.size; ++i)
      result.ranks.push_back(
          static_cast<int32_t>(layout_.rank(stage, group.first + i * group.stride).value));
    groups_.push_back(std::move(result));
  }

  void add_pairs(Axis axis, int64_t from, int64_t to, double bytes) {
    for (int64_t member = 0; member < layout_.num_members(); ++member) {
      const auto a = static_cast<int32_t>(layout_.rank(from, member).value);
      const auto b = static_cast<int32_t>(layout_.rank(to, member).value);
      groups_.push_back({axis, false, bytes, {std::min(a, b), std::max(a, b)}});
    }
  }

  void add_messages() {
    const double part = s_.sequence_parallel ? of(s_.mesh.tp) : 1;
    const double bytes = micro_batches() * tokens() * of(model_.hidden) * element_ / part;
    std::map<std::pair<int64_t, int64_t>, double> pairs;
    for (int64_t chunk = 0; chunk + 1 < s_.mesh.num_virtual_stages(); ++chunk) {
      const int64_t a = stage_of(chunk), b = stage_of(chunk + 1);
      if (a != b) pairs[{std::min(a, b), std::max(a, b)}] += bytes;
    }
    for (const auto& [stages, sum] : pairs)
      add_pairs(Axis::kPipeline, stages.first, stages.second, sum);
  }

  void add_ends() {
    if (!model_.shares_embedding() || !strategy::ends_apart(s_)) return;
    const double table = of(model_.vocabulary * model_.hidden) / of(s_.mesh.tp);
    add_pairs(Axis::kEmbeddingTable, 0, s_.mesh.pp - 1,
              table * of(strategy::state_bytes(s_.precision).gradient));
  }

  const model::Model& model_;
  const Strategy& s_;
  strategy::RankLayout layout_;
  double element_;
  std::vector<RankGroup> groups_;
};

}  // namespace

std::vector<RankGroup> rank_traffic(const model::Model& model, const Strategy& strategy) {
  return Writer(model, strategy).all();
}

double exchange_pair_bytes(const model::Model& model, const Strategy& s) {
  const Writer writer(model, s);
  for (int64_t layer = 0; layer < std::ssize(model.layers); ++layer)
    if (model.layers[static_cast<size_t>(layer)].feed_forward.is_moe())
      return writer.layer_rows(layer) * of(model.hidden) *
             of(strategy::element_bytes(s.precision)) / of(s.mesh.ep);
  return 0;
}

}  // namespace piper::placement
