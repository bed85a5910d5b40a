#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/export/megatron_words.h>

namespace piper::exporting {

using strategy::Strategy;

Exported to_nemo(const Job& job) {
  const model::Model& model = job.model;
  const Strategy& s = job.strategy;
  const auto wants = [&](const char* flag) { return job.ruling.flags.contains(flag); };
  Exported exported;
  const bool moe = model.num_moe_layers() > 0;
  std::string& text = exported.text;
  text += fmt::format(
      "# nemo.lightning.MegatronStrategy(...)\nstrategy:\n  tensor_model_parallel_size: {}\n",
      s.mesh.tp);
  text += fmt::format("  pipeline_model_parallel_size: {}\n", s.mesh.pp);
  if (s.mesh.vpp > 1)
    text += fmt::format("  virtual_pipeline_model_parallel_size: {}\n", s.mesh.vpp);
  text += fmt::format("  context_parallel_size: {}\n  sequence_parallel: {}\n", s.mesh.cp,
                      s.sequence_parallel);
  if (s.placement == strategy::Placement::kPipelineInside) text += "  use_tp_pp_dp_mapping: true\n";
  if (wants("--use-distributed-optimizer") || wants("--overlap-grad-reduce"))
    text += fmt::format(
        "  ddp: {{use_distributed_optimizer: {}, overlap_grad_reduce: {}, overlap_param_gather: "
        "{}}}\n",
        wants("--use-distributed-optimizer"), wants("--overlap-grad-reduce"),
        wants("--overlap-param-gather"));
  if (moe)
    text += fmt::format("  expert_model_parallel_size: {}\n  expert_tensor_parallel_size: {}\n",
                        s.mesh.ep, s.mesh.etp);
  if (strategy::offloads_optimizer(s.offload))
    text +=
        "# megatron.core.optimizer.OptimizerConfig(...)\noptimizer:\n  optimizer_cpu_offload: "
        "true\n  optimizer_offload_fraction: 1.0\n  use_precision_aware_optimizer: true\n";
  text +=
      fmt::format("# nemo.lightning.Trainer(...)\ntrainer:\n  world_size: {}\n", s.mesh.world());
  text += fmt::format("  precision: {}\n",
                      s.precision == strategy::Precision::kFp32 ? "32" : "bf16-mixed");
  text += fmt::format(
      "# the data module\ndata:\n  micro_batch_size: {}\n  global_batch_size: {}\n  seq_length: "
      "{}\n",
      s.micro_batch_sequences, s.global_batch_sequences, s.sequence);
  text += "# the model's config\nmodel:\n";
  if (s.mesh.cp > 1)
    text += fmt::format("  cp_comm_type: {}\n", strategy::has_ring(s) ? "p2p" : "all_gather");
  if (wants("--tp-comm-overlap")) text += "  tp_comm_overlap: true\n";
  if (wants("--overlap-moe-expert-parallel-comm"))
    text += "  overlap_moe_expert_parallel_comm: true\n";
  text += fmt::format("  seq_length: {}\n", s.sequence);
  if (const std::string layout = pipeline_layout(model, s); !layout.empty())
    text += fmt::format("  pipeline_model_parallel_layout: \"{}\"\n", layout);
  if (s.recompute == strategy::Recompute::kFull) {
    text +=
        "  recompute_granularity: full\n  recompute_method: uniform\n  recompute_num_layers: 1\n";
  } else if (const auto modules = recompute_modules(model, s); !modules.empty()) {
    text += fmt::format("  recompute_granularity: selective\n  recompute_modules: [{}]\n",
                        fmt::join(modules, ", "));
  } else {
    text += "  recompute_granularity: null\n";
  }
  if (moe) text += "  moe_token_dispatcher_type: alltoall\n  moe_grouped_gemm: true\n";
  if (s.capacity.is_limited())
    text += fmt::format(
        "  moe_expert_capacity_factor: {}\n  moe_token_drop_policy: {}\n"
        "  moe_pad_expert_input_to_capacity: {}\n",
        s.capacity.factor, drop_policy(s.capacity), s.capacity.pads);
  exported.differs.push_back(fmt::format(
      "the shapes of {} are not in this document: take NeMo's own recipe of it", model.name));
  return exported;
}

}  // namespace piper::exporting
