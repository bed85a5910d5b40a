#include <fmt/format.h>
#include <piper/export/export.h>

#include <algorithm>

namespace piper::exporting {
namespace {

using strategy::Strategy;

// Layers that the two ends have less than the stages between them, which is all that flags can say
// of a split.
struct Ends {
  int64_t first_less = 0, last_less = 0;
};

std::optional<Ends> ends_of(const Strategy& s) {
  const std::vector<int64_t>& split = s.layers_per_stage;
  if (split.size() < 2) return Ends{};
  const int64_t inner = split.size() > 2 ? split[1] : std::max(split.front(), split.back());
  for (size_t i = 1; i + 1 < split.size(); ++i)
    if (split[i] != inner) return std::nullopt;
  if (split.front() > inner || split.back() > inner) return std::nullopt;
  return Ends{inner - split.front(), inner - split.back()};
}

}  // namespace

namespace {

const char* schedule_name(strategy::PipelineSchedule schedule) {
  switch (schedule) {
    case strategy::PipelineSchedule::kGPipe:
      return "GPipe";
    case strategy::PipelineSchedule::k1F1B:
      return "1F1B";
    case strategy::PipelineSchedule::kInterleaved:
      return "Interleaved1F1B";
    case strategy::PipelineSchedule::kZbH1:
      return "-";  // there is none
    case strategy::PipelineSchedule::kZbV:
      return "ZBVZeroBubble";
    case strategy::PipelineSchedule::kDualPipeV:
      return "DualPipeV";
    case strategy::PipelineSchedule::k1F1BPairs:
    case strategy::PipelineSchedule::kInterleavedPairs:
      return "-";  // there is none
  }
  return "?";
}

}  // namespace

Exported to_torchtitan(const Job& job) {
  const model::Model& model = job.model;
  const Strategy& s = job.strategy;
  Exported exported;
  const auto add = [&](const char* flag, const auto& value) {
    exported.text += fmt::format("--{} {}\n", flag, value);
  };
  const bool pipelines = s.mesh.pp > 1;
  if (s.precision == strategy::Precision::kFp64 || s.precision == strategy::Precision::kFp16)
    exported.cannot.push_back(
        fmt::format("{}: torchtitan trains in fp32 and bf16", strategy::name(s.precision)));
  if (s.capacity.is_limited())
    exported.cannot.push_back(fmt::format(
        "capacity-factor {}: torchtitan drops no tokens; the nearest: without a capacity",
        s.capacity.factor));
  if (converts_operands(s.precision))
    exported.differs.push_back(
        fmt::format("{}: name the quantisation converter of torchao in the config",
                    strategy::name(s.precision)));
  if (s.offload != strategy::Offload::kNone)
    exported.differs.emplace_back(
        "offload: training.enable_cpu_offload moves weights, gradients and optimizer together");
  // Experts are spread over ranks that also shard the rest of the weights; with ZeRO 2 and 3 all
  // replicas do, and fully_shard() gathers the weights once for both passes or for each.
  const bool shards = s.zero > 0;
  const int64_t shard = shards ? s.mesh.dp : std::min(s.mesh.ep, s.mesh.dp);
  add("parallelism.data_parallel_replicate_degree", s.mesh.dp / shard);
  add("parallelism.data_parallel_shard_degree", shard);
  if (shards) add("parallelism.fsdp_reshard_after_forward", s.zero == 3 ? "always" : "never");
  add("parallelism.expert_parallel_degree", s.mesh.ep);
  if (s.mesh.etp > 1) add("parallelism.expert_tensor_parallel_degree", s.mesh.etp);
  add("parallelism.tensor_parallel_degree", s.mesh.tp);
  add("parallelism.context_parallel_degree", s.mesh.cp);
  if (s.mesh.cp > 1)
    add("parallelism.context_parallel_rotate_method",
        strategy::has_ring(s) ? "alltoall" : "allgather");
  add("parallelism.pipeline_parallel_degree", s.mesh.pp);
  if (pipelines) {
    add("parallelism.pipeline_parallel_schedule", schedule_name(s.schedule));
    add("parallelism.pipeline_parallel_microbatch_size", s.micro_batch_sequences);
    std::optional<Ends> ends = ends_of(s);
    // Two chunks a rank are its default; more follow from the layers of a stage, rounded up.
    if (ends && s.mesh.vpp > 2) {
      const int64_t stages = std::ssize(s.layers_per_stage);
      const int64_t layers = model.num_layers() + ends->first_less + ends->last_less;
      const int64_t of_a_stage = (layers + stages - 1) / stages;
      if ((layers + of_a_stage - 1) / of_a_stage == stages)
        add("parallelism.pipeline_parallel_layers_per_stage", of_a_stage);
      else
        ends.reset();
    }
    add("parallelism.pipeline_parallel_first_stage_less_layers", ends ? ends->first_less : 0);
    add("parallelism.pipeline_parallel_last_stage_less_layers", ends ? ends->last_less : 0);
    if (!ends)
      exported.differs.emplace_back(
          "the split of the layers: only both ends may differ by flag; name the modules of each "
          "stage in parallelism.module_fqns_per_model_part");
  }
  // With a pipeline the batch of a rank is cut into micro-batches; without one they are
  // accumulated.
  add("training.local_batch_size",
      pipelines ? s.micro_batch_sequences * s.num_micro_batches : s.micro_batch_sequences);
  add("training.global_batch_size", s.global_batch_sequences);
  add("training.seq_len", s.sequence);
  add("training.mixed_precision_param",
      s.precision == strategy::Precision::kFp32 ? "float32" : "bfloat16");
  exported.differs.push_back(fmt::format(
      "--module and --config name the model: the one of {} shapes, or your own registry",
      model.name));
  if (s.mesh.ep > 1 && !shards)
    exported.differs.push_back(fmt::format(
        "weights, gradients and optimizer of what is no expert are sharded over {} ranks (FSDP): "
        "less memory, more communication than planned",
        s.mesh.ep));
  if (s.recompute == strategy::Recompute::kFull)
    exported.differs.emplace_back(
        "activation_checkpoint: FullAC in the config (mode full before 0.3)");
  else if (s.recompute == strategy::Recompute::kNone)
    exported.differs.emplace_back(
        "activation_checkpoint: none in the config (mode none before 0.3)");
  return exported;
}

}  // namespace piper::exporting
