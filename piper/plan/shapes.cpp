#include <piper/model/shared_layer.h>
#include <piper/plan/shapes.h>
#include <piper/strategy/residual_code.h>
#include <piper/strategy/runnable.h>

#include <algorithm>
#include <numeric>

namespace piper::plan {
namespace {

using cost::Decided;
using strategy::Offload;
using strategy::PipelineSchedule;
using strategy::Placement;
using strategy::Strategy;

constexpr int64_t kMostTensor = 64, kMostContext = 64, kMostExpertTensor = 8;
constexpr int64_t kMostMicroBatch = 16, kMostMicroBatchExact = 64;

// Whether a strategy with one more change is among those that are asked for.
template <class Change>
bool is_tried(const Request& r, const Strategy& s, Change change) {
  if (!r.fixed.runnable) return true;
  Strategy changed = s;
  change(changed);
  return strategy::not_runnable(changed).empty();
}

// Whether a rule of the trainer refuses it by that change.
template <class Change>
bool is_forbidden(const Request& r, Decided decided, const Strategy& s, Change change) {
  if (r.forbidden != nullptr && !r.forbidden->asks(decided)) return false;
  Strategy changed = s;
  change(changed);
  return r.forbids(decided, changed);
}

class Shapes {
 public:
  explicit Shapes(const Request& request) : r_(request) {}

  std::vector<Shape> run() {
    const model::Model& m = *r_.model;
    const std::vector<int64_t> degrees = expert_degrees(m);
    for (const int64_t tp : strategy::divisors(r_.num_devices)) {
      if (tp > kMostTensor || !divides_heads(tp) || !wanted(r_.fixed.tp, tp)) continue;
      if (!r_.fixed.tp && tp > r_.cluster->devices_per_node()) continue;
      for (const int64_t cp : strategy::divisors(r_.num_devices / tp)) {
        if (cp > kMostContext || !wanted(r_.fixed.cp, cp)) continue;
        if (cp > 1 && r_.fixed.capacity.pads) continue;
        if (cp > 1 && (r_.sequence % (2 * cp) != 0 || r_.sequence / cp < 512)) continue;
        for (const int64_t pp : strategy::divisors(r_.num_devices / (tp * cp))) {
          if (pp > m.num_layers() || !wanted(r_.fixed.pp, pp)) continue;
          const int64_t dp = r_.num_devices / (tp * cp * pp);
          if (!wanted(r_.fixed.dp, dp) || r_.global_batch_sequences % dp != 0) continue;
          add_shapes({pp, tp, cp, dp, 1, 1, 1, false}, degrees);
        }
      }
    }
    return std::move(shapes_);
  }

 private:
  // Whether tp divides the heads of every layer, as strategy::contradictions() asks, and all that
  // this Piper must divide to train the model.
  bool divides_heads(int64_t tp) const {
    if (r_.fixed.runnable && !model::undividable(*r_.model, tp).empty()) return false;
    return std::ranges::all_of(
        r_.model->layers, [&](const model::Layer& l) { return l.attention.num_heads % tp == 0; });
  }
  bool divides_experts(int64_t etp) const {
    return std::ranges::all_of(r_.model->layers, [&](const model::Layer& l) {
      return !l.feed_forward.is_moe() || l.feed_forward.ffn % etp == 0;
    });
  }

  bool runs(const Shape& shape) const {
    return is_tried(r_, with_shape(r_, shape), [&](Strategy& s) {
      s.sequence_parallel = shape.sequence_parallel;
      s.capacity = r_.fixed.capacity;
    });
  }
  // Whether ranks that share matrices divide tokens, or hold all of them. What this Piper runs is
  // no faster and no smaller without the former, so that it tries the latter where it is asked for,
  // or where the former does not run.
  bool tries_tokens(Shape shape, bool divided) const {
    const bool can_divide = shape.tp > 1 && r_.sequence % (shape.tp * shape.cp) == 0;
    // Some orders of a mixture layer are of tokens that all of them hold, and a padded capacity is
    // that of whole sequences.
    if (r_.fixed.capacity.pads) return !divided;
    if (r_.fixed.moe_schedule && strategy::refuses_divided_tokens(*r_.fixed.moe_schedule))
      return !divided;
    if (divided || !can_divide || !r_.fixed.runnable || r_.fixed.sequence_parallel)
      return !divided || can_divide;
    shape.sequence_parallel = true;
    return !runs(shape);
  }
  bool is_allowed(const Shape& shape) const {
    if (r_.trainer->rules == nullptr || !r_.fixed.offered) return true;
    Strategy s = with_shape(r_, shape);
    s.sequence_parallel = shape.sequence_parallel;
    return !r_.forbids(Decided::kShape, s);
  }
  // Where the paper's form is asked for.
  bool is_of_the_paper(const Shape& shape) const {
    if (r_.fixed.paper_form && shape.cp > 1) return false;
    return !r_.fixed.paper_form ||
           (shape.tp == 1 && shape.dp == shape.ep && shape.ep <= fast_domain(*r_.cluster));
  }

  void add_shapes(Shape shape, const std::vector<int64_t>& degrees) {
    const int64_t stage = shape.tp * shape.cp * shape.dp;
    const int64_t per_rank = r_.global_batch_sequences / shape.dp;
    const bool moe = r_.model->num_moe_layers() > 0;
    const std::vector<int64_t> micro_batches = strategy::divisors(per_rank);
    for (const int64_t ep : degrees) {
      shape.ep = ep;
      if (stage % ep != 0 || !wanted(r_.fixed.ep, ep)) continue;
      for (shape.etp = 1; shape.etp <= (moe ? kMostExpertTensor : 1); shape.etp *= 2) {
        if (stage % (shape.ep * shape.etp) != 0 || !divides_experts(shape.etp) ||
            !wanted(r_.fixed.etp, shape.etp) || !r_.offers().has_expert_tensor(shape.etp, shape.tp))
          continue;
        // Those beyond are left out unless their number asks for them.
        const int64_t most = r_.fixed.num_micro_batches ? per_rank
                             : r_.has_exact_costs()     ? kMostMicroBatchExact
                                                        : kMostMicroBatch;
        for (const int64_t micro : micro_batches) {
          shape.micro = micro;
          const int64_t num = per_rank / micro;
          if (micro > most || num > strategy::kMaxCount ||
              !wanted(r_.fixed.micro_batch_sequences, micro) ||
              !wanted(r_.fixed.num_micro_batches, num))
            continue;
          for (const bool sp : {false, true})
            if (wanted(r_.fixed.sequence_parallel, sp) && tries_tokens(shape, sp)) {
              shape.sequence_parallel = sp;
              if (is_of_the_paper(shape) && is_allowed(shape) && runs(shape))
                shapes_.push_back(shape);
            }
        }
      }
    }
  }

  const Request& r_;
  std::vector<Shape> shapes_;
};

}  // namespace

std::vector<Shape> shapes_of(const Request& request) { return Shapes(request).run(); }

bool tries_schedule(const Request& r, const Strategy& s, PipelineSchedule schedule) {
  if (!wanted(r.fixed.schedule, schedule) || !r.offers().has(schedule, s.mesh.pp) ||
      !is_tried(r, s, [&](Strategy& with) { with.schedule = schedule; }) ||
      is_forbidden(r, Decided::kSchedule, s, [&](Strategy& with) { with.schedule = schedule; }))
    return false;
  // Pairs that hide no exchange only keep more; one micro-batch makes none.
  Strategy with = s;
  with.schedule = schedule;
  if (strategy::pairs_share_layers(schedule) && !r.fixed.schedule &&
      (!strategy::pairs_take_turns(with) || s.num_micro_batches == 1))
    return false;
  // Without a pipeline GPipe only keeps more than 1F1B, and others need one. ZB-H1 hides reductions
  // behind its weights' parts and computes more in two parts, which exact costs alone know.
  return s.mesh.pp > 1 || schedule == PipelineSchedule::k1F1B ||
         schedule == PipelineSchedule::k1F1BPairs ||
         (schedule == PipelineSchedule::kZbH1 && r.has_exact_costs()) ||
         (r.fixed.schedule &&
          (schedule == PipelineSchedule::kGPipe || schedule == PipelineSchedule::kZbH1));
}

bool tries_chunks(const Request& r, const Strategy& s, int64_t vpp) {
  if (!wanted(r.fixed.vpp, vpp) ||
      is_forbidden(r, Decided::kChunks, s, [&](Strategy& with) { with.mesh.vpp = vpp; }))
    return false;
  const int64_t layers = r.model->num_layers();
  if (strategy::is_v(s.schedule)) return vpp == 2 && s.mesh.pp > 1 && 2 * s.mesh.pp <= layers;
  if (!strategy::interleaves(s.schedule)) return vpp == 1;
  return vpp > 1 && s.mesh.pp > 1 && s.mesh.pp * vpp <= layers &&
         s.num_micro_batches % s.mesh.pp == 0;
}

bool tries_zero(const Request& r, const Strategy& s, int64_t zero) {
  return wanted(r.fixed.zero, zero) && r.offers().has_zero(zero, s.mesh.pp) &&
         (zero == 0 || s.mesh.num_replicas() > 1 || s.mesh.edp() > 1) &&
         (zero < 2 || s.reduction_start == strategy::ReductionStart::kReady) &&
         (zero < 3 || !strategy::pairs_share_layers(s.schedule)) &&
         is_tried(r, s, [&](Strategy& with) { with.zero = zero; }) &&
         !is_forbidden(r, Decided::kZero, s, [&](Strategy& with) { with.zero = zero; });
}

int64_t compression_of(const Request& r, const Strategy& s) {
  if (r.fixed.expert_compression == 1) return 1;
  Strategy with = s;
  with.expert_compression = r.fixed.expert_compression;
  // A strategy in the search has no layers and no batches yet: only what is said of this counts.
  const bool is_refused = std::ranges::any_of(
      strategy::contradictions(with, *r.model),
      [](const strategy::Contradiction& c) { return c.key == "expert_compression"; });
  return is_refused ? 1 : with.expert_compression;
}

bool tries_offload(const Request& r, const Strategy& s, Offload offload) {
  const bool of_activations =
      offload == Offload::kActivations || offload == Offload::kOptimizerAndActivations;
  return wanted(r.fixed.offload, offload) && r.offers().has(offload) &&
         (s.mesh.pp > 1 || !of_activations) && (!r.fixed.paper_form || offload == Offload::kNone) &&
         is_tried(r, s, [&](Strategy& with) { with.offload = offload; }) &&
         !is_forbidden(r, Decided::kOffload, s, [&](Strategy& with) { with.offload = offload; });
}

bool tries_placement(const Request& r, const Strategy& s, Placement placement) {
  // Which ranks are neighbours matters where some are farther apart than others.
  const bool matters = r.cluster->levels.front().num_members < s.mesh.world();
  return (placement == Placement::kDataInside ||
          ((matters || r.fixed.placement) && s.mesh.pp > 1 && s.mesh.dp > 1)) &&
         wanted(r.fixed.placement, placement) &&
         is_tried(r, s, [&](Strategy& with) { with.placement = placement; }) &&
         !is_forbidden(r, Decided::kPlacement, s,
                       [&](Strategy& with) { with.placement = placement; });
}

Strategy with_shape(const Request& r, const Shape& s) {
  using strategy::ContextExchange;
  const ContextExchange keys =
      s.cp > 1 ? r.fixed.context_exchange.value_or(ContextExchange::kRing) : ContextExchange::kRing;
  return {.mesh = {.pp = s.pp, .ep = s.ep, .dp = s.dp, .etp = s.etp, .tp = s.tp, .cp = s.cp},
          .sequence = r.sequence,
          .global_batch_sequences = r.global_batch_sequences,
          .micro_batch_sequences = s.micro,
          .num_micro_batches = r.global_batch_sequences / s.dp / s.micro,
          .context_exchange = keys};
}

std::vector<int64_t> expert_degrees(const model::Model& model) {
  int64_t common = 0;
  for (const model::Layer& layer : model.layers)
    common = std::gcd(common, layer.feed_forward.num_experts);
  return common == 0 ? std::vector<int64_t>{1} : strategy::divisors(common);
}

int64_t fast_domain(const cluster::Cluster& cluster) {
  for (size_t level = 0; level < cluster.levels.size(); ++level)
    if (cluster.levels[level].name == "switch_group") return cluster.devices_of_level(level);
  return cluster.devices_per_node();
}

}  // namespace piper::plan
