#include <fmt/format.h>
#include <piper/export/megatron_settings.h>
#include <piper/export/start_script.h>

#include <algorithm>
#include <array>

namespace piper::exporting {

namespace {

// What nemo.lightning.MegatronStrategy takes itself; the rest of the fields are the model's.
constexpr auto kOfStrategy = std::to_array<std::string_view>(
    {"tensor_model_parallel_size", "sequence_parallel", "pipeline_model_parallel_size",
     "virtual_pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
     "expert_tensor_parallel_size", "pipeline_model_parallel_layout", "use_tp_pp_dp_mapping"});

// In YAML, which has its own words for what Python calls True, False and None.
std::string yaml(const std::string& python) {
  if (python == "True") return "true";
  if (python == "False") return "false";
  if (python == "None") return "null";
  return python;
}

}  // namespace

Exported to_nemo(const Job& job) {
  MegatronSettings of = megatron_settings(job);
  Exported exported{.differs = std::move(of.differs), .cannot = std::move(of.cannot)};
  std::string& text = exported.text;
  text = fmt::format(
      "# {}. Written by piper export.\n# For NeMo 2 (nemo.lightning, nemo.collections.llm), which "
      "Megatron-Bridge has "
      "replaced: --to megatron-bridge.\n",
      what_of(job));
  for (const auto& [name, value] : job.ruling.environment)
    text += fmt::format("# export {}={}\n", name, value);
  const auto write = [&](const char* of_class, const char* key, auto takes) {
    std::string lines;
    for (const Setting& s : of.settings) {
      const size_t dot = s.field.find('.');
      if (dot == std::string::npos || s.is_model) continue;
      const std::string object = s.field.substr(0, dot), name = s.field.substr(dot + 1);
      if (takes(object, name)) lines += fmt::format("  {}: {}\n", name, yaml(s.value.python));
    }
    if (!lines.empty()) text += fmt::format("# {}\n{}:\n{}", of_class, key, lines);
  };
  const auto is_strategy = [](const std::string& object, const std::string& name) {
    return (object == "model" || object == "dist") &&
           std::ranges::find(kOfStrategy, name) != kOfStrategy.end();
  };
  write("nemo.lightning.MegatronStrategy(...)", "strategy", is_strategy);
  write("megatron.core.distributed.DistributedDataParallelConfig(...), the strategy's ddp", "ddp",
        [](const std::string& object, const std::string&) { return object == "ddp"; });
  write("megatron.core.optimizer.OptimizerConfig(...)", "optimizer",
        [](const std::string& object, const std::string&) { return object == "optimizer"; });
  const Hosts hosts = hosts_of(job.strategy, job.machine);
  text += fmt::format("# nemo.lightning.Trainer(...)\ntrainer:\n  num_nodes: {}\n  devices: {}\n",
                      hosts.num_hosts, hosts.ranks_per_host);
  text += fmt::format("  precision: {}\n",
                      job.strategy.precision == strategy::Precision::kFp32 ? "32" : "bf16-mixed");
  if (converts_operands(job.strategy.precision))
    exported.differs.push_back(
        fmt::format("precision {}: name its plug-in, nemo.lightning.MegatronMixedPrecision",
                    strategy::name(job.strategy.precision)));
  write("the data module", "data",
        [](const std::string& object, const std::string&) { return object == "train"; });
  text += fmt::format("  seq_length: {}\n", job.strategy.sequence);
  write("the model's config", "model", [&](const std::string& object, const std::string& name) {
    return object == "model" && !is_strategy(object, name);
  });
  exported.differs.push_back(fmt::format(
      "the shapes of {} are not in this document: take NeMo's own recipe of it", job.model.name));
  return exported;
}

}  // namespace piper::exporting
