#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/json.h>
#include <piper/export/export.h>
#include <piper/export/start_script.h>

namespace piper::exporting {
namespace {

using strategy::Precision;
using strategy::Strategy;

constexpr const char* kVersion = "0.19.8";  // whose keys are written

Json configuration(const Strategy& s) {
  Json json{{kWrittenBy, "piper"}};
  json["train_batch_size"] = s.global_batch_sequences;
  json["train_micro_batch_size_per_gpu"] = s.micro_batch_sequences;
  json["gradient_accumulation_steps"] = s.num_micro_batches;
  json["bf16"] = {{"enabled", s.precision == Precision::kBf16}};
  if (s.precision == Precision::kFp16) json["fp16"] = {{"enabled", true}};
  json["zero_optimization"] = {{"stage", s.zero}};
  if (strategy::offloads_optimizer(s.offload))
    json["zero_optimization"]["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
  if (s.mesh.tp > 1) json["tensor_parallel"] = {{"autotp_size", s.mesh.tp}};
  json["gradient_clipping"] = 1.0;
  if (s.recompute == strategy::Recompute::kFull)
    json["activation_checkpointing"] = {
        {"partition_activations", false},
        {"cpu_checkpointing", strategy::offloads_activations(s.offload)}};
  return json;
}

std::string experts(const model::Model& model, const Strategy& s) {
  const std::string capacity =
      s.capacity.is_limited()
          ? fmt::format(
                "capacity_factor={}, eval_capacity_factor={}, min_capacity=1); DeepSpeed "
                "counts by micro-batch and rank, drops by its own order, not by '{}', and "
                "pads every expert to its capacity",
                s.capacity.factor, s.capacity.factor, name(s.capacity.drop))
          : "drop_tokens=False); DeepSpeed pads every expert to the fullest one";
  return fmt::format(
      "in the model's code: deepspeed.moe.layer.MoE(num_experts={}, k={}, ep_size={}, {}",
      model.num_experts(), model.top_k(), s.mesh.ep, capacity);
}

// What is no key of the configuration: version, launch, and what the model's code does.
void add_notes(const Job& job, Exported& exported) {
  const model::Model& model = job.model;
  const Strategy& s = job.strategy;
  const bool moe = model.num_moe_layers() > 0;
  const auto note = [&](std::string line) { exported.differs.push_back(std::move(line)); };
  const Hosts hosts = hosts_of(s, job.machine);
  note(fmt::format("keys of DeepSpeed {}", kVersion));
  note(
      fmt::format("start {} processes: deepspeed --hostfile HOSTS --num_nodes {} --num_gpus {} "
                  "TRAIN.py --deepspeed --deepspeed_config THIS_FILE; environment: none beyond "
                  "the launcher's",
                  s.mesh.world(), hosts.num_hosts, hosts.ranks_per_host));
  note(
      fmt::format("to fill in: \"optimizer\" and \"scheduler\" with the learning rate (or in the "
                  "code), data and tokenizer, sequences of {} tokens",
                  s.sequence));
  if (moe) note(experts(model, s));
  if (s.mesh.cp > 1)
    note(
        fmt::format("context parallelism as Ulysses, which divides heads instead of keys and "
                    "values: initialise sequence_parallel_size {}",
                    s.mesh.cp));
  if (s.mesh.tp > 1)
    note(s.sequence_parallel
             ? "sequence-parallel: DeepSpeed's tensor parallelism leaves norms and residuals whole "
               "on every rank: more memory than planned"
             : "tensor parallelism cuts the modules that AutoTP knows by name");
  if (s.mesh.pp > 1) {
    note(
        fmt::format("in the model's code: PipelineModule(num_stages={}, "
                    "partition_method='uniform'){}",
                    s.mesh.pp,
                    moe ? "; its stages hand on one tensor, so wrap each MoE layer, which also "
                          "returns its auxiliary loss"
                        : ""));
    if (s.layers_per_stage != strategy::even_split(model.num_layers(), s.mesh.pp))
      note(
          fmt::format("layers by stage {}: 'uniform' makes stages of equal length; give "
                      "PipelineModule layers that it divides so",
                      fmt::join(s.layers_per_stage, ",")));
    if (s.placement != strategy::Placement::kDataInside)
      note(fmt::format("placement {}: give PipelineModule a topology with data as the outer axis",
                       name(s.placement)));
  }
  if (s.recompute == strategy::Recompute::kFull)
    note("in the model's code: every layer through deepspeed.checkpointing.checkpoint");
  else if (s.recompute != strategy::Recompute::kNone)
    note(
        fmt::format("recompute {}: a matter of the model's code; DeepSpeed's configuration knows "
                    "whole functions only",
                    strategy::name(s.recompute)));
  if (!s.recompute_per_stage.empty())
    note("recompute by stage: a matter of the model's code, stage by stage");
  if (s.mtp_depth > 0) note(fmt::format("mtp-depth {}: a matter of the model's code", s.mtp_depth));
}

}  // namespace

Exported to_deepspeed(const Job& job) {
  const Precision precision = job.strategy.precision;
  Exported exported;
  if (precision == Precision::kFp64 || converts_operands(precision))
    exported.cannot.push_back(
        fmt::format("{}: DeepSpeed trains in fp32, fp16 and bf16", strategy::name(precision)));
  exported.text = configuration(job.strategy).dump(2) + "\n";
  add_notes(job, exported);
  return exported;
}

}  // namespace piper::exporting
