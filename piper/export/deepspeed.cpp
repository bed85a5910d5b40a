#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/export/export.h>

namespace piper::exporting {

using strategy::Strategy;

Exported to_deepspeed(const Job& job) {
  const model::Model& model = job.model;
  const Strategy& s = job.strategy;
  Exported exported;
  const bool moe = model.num_moe_layers() > 0;
  if (s.precision == strategy::Precision::kFp64)
    exported.cannot.emplace_back("fp64: DeepSpeed trains in fp32, fp16 and bf16");
  if (converts_operands(s.precision))
    exported.cannot.push_back(
        fmt::format("{}: DeepSpeed trains in fp32, fp16 and bf16", strategy::name(s.precision)));
  const bool is_full = s.recompute == strategy::Recompute::kFull;
  if (s.mesh.cp > 1)
    exported.differs.push_back(fmt::format(
        "context parallelism as Ulysses, which divides heads instead of keys and values: "
        "initialise sequence_parallel_size {}",
        s.mesh.cp));
  Json json;
  json["train_batch_size"] = s.global_batch_sequences;
  json["train_micro_batch_size_per_gpu"] = s.micro_batch_sequences;
  json["gradient_accumulation_steps"] = s.num_micro_batches;
  json["bf16"] = {{"enabled", s.precision == strategy::Precision::kBf16}};
  if (s.precision == strategy::Precision::kFp16) json["fp16"] = {{"enabled", true}};
  json["zero_optimization"] = {{"stage", s.zero}};
  if (strategy::offloads_optimizer(s.offload))
    json["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
  if (s.mesh.tp > 1) json["tensor_parallel"] = {{"autotp_size", s.mesh.tp}};
  json["gradient_clipping"] = 1.0;
  if (is_full)
    json["activation_checkpointing"] = {
        {"partition_activations", false},
        {"cpu_checkpointing", strategy::offloads_activations(s.offload)}};
  exported.text = json.dump(2) + "\n";
  if (moe)
    exported.differs.push_back(fmt::format(
        "in the model's code: deepspeed.moe.layer.MoE(num_experts={}, k={}, ep_size={}, {}",
        model.num_experts(), model.top_k(), s.mesh.ep,
        s.capacity.is_limited()
            ? fmt::format(
                  "capacity_factor={}, eval_capacity_factor={}, min_capacity=1); DeepSpeed "
                  "counts by micro-batch and rank, drops by its own order, not by '{}', and "
                  "pads every expert to its capacity",
                  s.capacity.factor, s.capacity.factor, name(s.capacity.drop))
            : "drop_tokens=False); DeepSpeed pads every expert to the fullest one"));
  if (s.mesh.pp > 1)
    exported.differs.push_back(fmt::format(
        "in the model's code: PipelineModule(num_stages={}, partition_method='uniform'){}",
        s.mesh.pp,
        moe ? "; its stages hand on one tensor, so wrap each MoE layer, which also returns its "
              "auxiliary loss"
            : ""));
  if (is_full)
    exported.differs.emplace_back(
        "in the model's code: every layer through deepspeed.checkpointing.checkpoint");
  else if (s.recompute != strategy::Recompute::kNone)
    exported.differs.push_back(
        fmt::format("recompute {}: a matter of the model's code; DeepSpeed's configuration knows "
                    "whole functions only",
                    strategy::name(s.recompute)));
  if (!s.recompute_per_stage.empty())
    exported.differs.emplace_back(
        "recompute by stage: a matter of the model's code, stage by stage");
  exported.differs.push_back(fmt::format("start {} processes", s.mesh.world()));
  return exported;
}

}  // namespace piper::exporting
