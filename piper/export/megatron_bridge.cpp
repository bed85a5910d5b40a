#include <fmt/format.h>
#include <piper/export/megatron_settings.h>
#include <piper/export/start_script.h>

#include <algorithm>

namespace piper::exporting {

namespace {

// The provider of a model of this kind; Megatron-Bridge has norms over all heads as a class.
const char* provider_of(const model::Model& model) {
  const bool is_latent = std::ranges::any_of(model.layers, [](const model::Layer& l) {
    return l.attention.kind == model::AttentionKind::kLatent;
  });
  if (model.family == "olmoe") return "OlMoEModelProvider";
  return is_latent ? "MLAModelProvider" : "GPTModelProvider";
}

constexpr const char* kImports = R"(import os

import torch.nn.functional as F
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.models.mla_provider import MLAModelProvider
from megatron.bridge.models.olmoe.olmoe_provider import OlMoEModelProvider
from megatron.bridge.training.config import (CheckpointConfig, ConfigContainer, DistributedInitConfig, GPTDatasetConfig, LoggerConfig,
                                             OptimizerConfig, RNGConfig, SchedulerConfig, TokenizerConfig, TrainingConfig)
from megatron.core.activations import squared_relu
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.fusions.fused_bias_geglu import quick_gelu
)";

// What Piper does not know.
constexpr const char* kToFillIn = R"(# --- fill in, here or in the environment ---
DATA_PATH = os.environ["DATA_PATH"]  # prefix of the indexed data
TOKENIZER = os.environ["TOKENIZER"]  # folder or name of the Hugging Face tokenizer
LR = float(os.environ["LR"])  # learning rate
MIN_LR = float(os.environ["MIN_LR"])  # lowest learning rate
TRAIN_ITERS = int(os.environ["TRAIN_ITERS"])  # number of steps
)";

constexpr const char* kEnd = R"(

if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(recipe(), forward_step)
)";

// The fields of one object, a line each.
std::string fields_of(const std::vector<Setting>& settings, const std::string& object,
                      const char* indent) {
  std::string text;
  for (const Setting& s : settings)
    if (s.field.starts_with(object + "."))
      text += fmt::format("{}{}={},\n", indent, s.field.substr(object.size() + 1), s.value.python);
  return text;
}

}  // namespace

Exported to_megatron_bridge(const Job& job) {
  MegatronSettings of = megatron_settings(job);
  Exported exported{.differs = std::move(of.differs), .cannot = std::move(of.cannot)};
  const auto fields = [&](const char* object) {
    return fields_of(of.settings, object, "            ");
  };
  const Hosts hosts = hosts_of(job.strategy, job.machine);
  std::string& text = exported.text;
  text = fmt::format(
      "\"\"\"{}. Written by piper export.\n\nFor NVIDIA-NeMo/Megatron-Bridge at 067f987d "
      "(2026-08).\n\n",
      what_of(job));
  std::string environment;
  for (const auto& [name, value] : job.ruling.environment)
    environment += fmt::format("{}={} ", name, value);
  text += fmt::format(
      "    {}torchrun --nnodes {} --nproc-per-node {} --node-rank $NODE_RANK --master-addr "
      "$MASTER_ADDR this.py\n",
      environment, hosts.num_hosts, hosts.ranks_per_host);
  text += fmt::format("\"\"\"\n{}\n{}\n\ndef recipe() -> ConfigContainer:\n", kImports, kToFillIn);
  text += "    # A process that has a value of its own keeps it.\n    environment = {";
  for (const auto& [name, value] : job.ruling.environment)
    text += fmt::format("\"{}\": \"{}\", ", name, value);
  text += "}\n    return ConfigContainer(\n        env_vars=environment,\n";
  text += fmt::format("        model={}(\n{}        ),\n", provider_of(job.model), fields("model"));
  text += fmt::format(
      "        train=TrainingConfig(\n            train_iters=TRAIN_ITERS,\n{}        ),\n",
      fields("train"));
  const bool divides = job.ruling.flags.contains("--use-distributed-optimizer");
  text += fmt::format(
      "        optimizer=OptimizerConfig(\n            optimizer=\"adam\",\n            lr=LR,\n"
      "            min_lr=MIN_LR,\n            bf16={},\n            "
      "use_distributed_optimizer={},\n{}        ),\n",
      job.strategy.precision == strategy::Precision::kFp32 ? "False" : "True",
      divides ? "True" : "False", fields("optimizer"));
  text += "        scheduler=SchedulerConfig(lr_decay_style=\"cosine\"),\n";
  text += fmt::format("        ddp=DistributedDataParallelConfig(\n{}        ),\n", fields("ddp"));
  text += fmt::format("        dist=DistributedInitConfig(\n{}        ),\n", fields("dist"));
  text += fmt::format(
      "        dataset=GPTDatasetConfig(\n            random_seed=1234,\n            "
      "reset_attention_mask=False,\n            reset_position_ids=False,\n            "
      "eod_mask_loss=False,\n            blend=([DATA_PATH], None),\n            "
      "split=\"99,1,0\",\n            dataloader_type=\"single\",\n{}        ),\n",
      fields("dataset"));
  text += "        logger=LoggerConfig(log_interval=1),\n";
  text +=
      "        tokenizer=TokenizerConfig(tokenizer_type=\"HuggingFaceTokenizer\", "
      "tokenizer_model=TOKENIZER),\n";
  text += "        checkpoint=CheckpointConfig(save=None, load=None),\n";
  text += "        rng=RNGConfig(seed=1234),\n";
  for (const Setting& s : of.settings)
    if (s.field == "mixed_precision")
      text += fmt::format("        mixed_precision={},\n", s.value.python);
  text += "    )\n";
  text += kEnd;
  return exported;
}

}  // namespace piper::exporting
