#include <piper/plan/setting.h>
#include <piper/plan/whole_shapes.h>

#include <algorithm>

namespace piper::plan {
namespace {

using strategy::Offload;
using strategy::PipelineSchedule;
using strategy::Placement;
using strategy::Strategy;

constexpr int64_t kMostTensor = 64, kMostContext = 64, kMostExpertTensor = 8;
constexpr int64_t kMostMicroBatch = 16;

class Shapes {
 public:
  explicit Shapes(const WholeRequest& request) : r_(request) {}

  std::vector<WholeShape> run() {
    const model::Model& m = *r_.model;
    const std::vector<int64_t> degrees = expert_degrees(m);
    for (const int64_t tp : divisors(r_.num_devices)) {
      if (tp > kMostTensor || !divides_heads(tp) || !wanted(r_.fixed.tp, tp)) continue;
      for (const int64_t cp : divisors(r_.num_devices / tp)) {
        if (cp > kMostContext || !wanted(r_.fixed.cp, cp)) continue;
        if (cp > 1 && (r_.sequence % (2 * cp) != 0 || r_.sequence / cp < 512)) continue;
        for (const int64_t pp : divisors(r_.num_devices / (tp * cp))) {
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
  // Of every layer, as strategy::contradictions() asks.
  bool divides_heads(int64_t tp) const {
    return std::ranges::all_of(
        r_.model->layers, [&](const model::Layer& l) { return l.attention.num_heads % tp == 0; });
  }
  bool divides_experts(int64_t etp) const {
    return std::ranges::all_of(r_.model->layers, [&](const model::Layer& l) {
      return !l.feed_forward.is_moe() || l.feed_forward.ffn % etp == 0;
    });
  }

  void add_shapes(WholeShape shape, const std::vector<int64_t>& degrees) {
    const int64_t stage = shape.tp * shape.cp * shape.dp;
    const int64_t per_rank = r_.global_batch_sequences / shape.dp;
    const bool moe = r_.model->num_moe_layers() > 0;
    for (shape.ep = 1; shape.ep <= stage; ++shape.ep) {
      if (!std::ranges::binary_search(degrees, shape.ep) || stage % shape.ep != 0 ||
          !wanted(r_.fixed.ep, shape.ep))
        continue;
      for (shape.etp = 1; shape.etp <= (moe ? kMostExpertTensor : 1); shape.etp *= 2) {
        if (stage % (shape.ep * shape.etp) != 0 || !divides_experts(shape.etp) ||
            !wanted(r_.fixed.etp, shape.etp))
          continue;
        // Those beyond are left out unless their number asks for them.
        const int64_t most = r_.fixed.num_micro_batches ? per_rank : kMostMicroBatch;
        for (shape.micro = 1; shape.micro <= std::min(per_rank, most); ++shape.micro) {
          if (per_rank % shape.micro != 0 || !wanted(r_.fixed.micro_batch_sequences, shape.micro) ||
              !wanted(r_.fixed.num_micro_batches, per_rank / shape.micro))
            continue;
          for (const bool sp : {false, true}) {
            if (sp && (shape.tp == 1 || r_.sequence % (shape.tp * shape.cp) != 0)) continue;
            if (!wanted(r_.fixed.sequence_parallel, sp)) continue;
            shape.sequence_parallel = sp;
            shapes_.push_back(shape);
          }
        }
      }
    }
  }

  const WholeRequest& r_;
  std::vector<WholeShape> shapes_;
};

}  // namespace

std::vector<WholeShape> whole_shapes(const WholeRequest& request) { return Shapes(request).run(); }

bool tries_schedule(const WholeRequest& r, const Strategy& s, PipelineSchedule schedule) {
  if (!wanted(r.fixed.schedule, schedule)) return false;
  // Without a pipeline they are all the same, but for those that need one.
  return s.mesh.pp > 1 || schedule == PipelineSchedule::k1F1B ||
         (r.fixed.schedule && !strategy::is_v(schedule) &&
          schedule != PipelineSchedule::kInterleaved);
}

bool tries_chunks(const WholeRequest& r, const Strategy& s, int64_t vpp) {
  if (!wanted(r.fixed.vpp, vpp)) return false;
  const int64_t layers = r.model->num_layers();
  if (strategy::is_v(s.schedule)) return vpp == 2 && s.mesh.pp > 1 && 2 * s.mesh.pp <= layers;
  if (s.schedule != PipelineSchedule::kInterleaved) return vpp == 1;
  return vpp > 1 && s.mesh.pp > 1 && s.mesh.pp * vpp <= layers &&
         s.num_micro_batches % s.mesh.pp == 0;
}

bool tries_zero(const WholeRequest& r, const Strategy& s, int64_t zero) {
  return wanted(r.fixed.zero, zero) && (zero == 0 || s.mesh.num_replicas() > 1 || s.mesh.edp() > 1);
}

bool tries_offload(const WholeRequest& r, const Strategy& s, Offload offload) {
  const bool of_activations =
      offload == Offload::kActivations || offload == Offload::kOptimizerAndActivations;
  return wanted(r.fixed.offload, offload) && (s.mesh.pp > 1 || !of_activations);
}

bool tries_placement(const WholeRequest& r, const Strategy& s, Placement placement) {
  return (placement == Placement::kDataInside || (s.mesh.pp > 1 && s.mesh.dp > 1)) &&
         wanted(r.fixed.placement, placement);
}

Strategy with_shape(const WholeRequest& r, const WholeShape& s) {
  return {.mesh = {.pp = s.pp, .ep = s.ep, .dp = s.dp, .etp = s.etp, .tp = s.tp, .cp = s.cp},
          .global_batch_sequences = r.global_batch_sequences,
          .micro_batch_sequences = s.micro,
          .num_micro_batches = r.global_batch_sequences / s.dp / s.micro};
}

}  // namespace piper::plan
