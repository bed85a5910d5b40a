#include <fmt/format.h>
#include <piper/export/megatron_settings.h>

namespace piper::exporting {

namespace {

// What Piper does not know, each with what to put there.
constexpr const char* kToFillIn = R"(# --- fill in, here or in the environment ---
MEGATRON=${MEGATRON:?folder of Megatron-LM}
DATA_PATH=${DATA_PATH:?prefix of the indexed data, as tools/preprocess_data.py writes it}
TOKENIZER=${TOKENIZER:?folder or name of the Hugging Face tokenizer}
LR=${LR:?learning rate}
MIN_LR=${MIN_LR:?lowest learning rate}
TRAIN_ITERS=${TRAIN_ITERS:?number of steps}
)";
constexpr const char* kOfThem[] = {"--lr \"$LR\"",
                                   "--min-lr \"$MIN_LR\"",
                                   "--lr-decay-style cosine",
                                   "--train-iters \"$TRAIN_ITERS\"",
                                   "--data-path \"$DATA_PATH\"",
                                   "--tokenizer-type HuggingFaceTokenizer",
                                   "--tokenizer-model \"$TOKENIZER\""};

// Ranks in the order of nodes, as the plan has them.
std::string launcher(const Nodes& nodes, int64_t world) {
  std::string text;
  if (nodes.per_node > 0) {
    text += fmt::format("NNODES={}\nGPUS_PER_NODE={}\n", nodes.count, nodes.per_node);
  } else {
    text += "GPUS_PER_NODE=${GPUS_PER_NODE:?GPUs of a node}\n";
    text += fmt::format("NNODES=$(({} / GPUS_PER_NODE))\n", world);
  }
  text +=
      R"(# On every node, or under Slurm once: srun --nodes $NNODES --ntasks-per-node 1 bash -c 'NODE_RANK=$SLURM_NODEID bash this.sh'
if [ "$NNODES" -gt 1 ]; then
  : "${NODE_RANK:?index of this node, from 0}" "${MASTER_ADDR:?host of node 0}"
fi
)";
  return text;
}

}  // namespace

Exported to_megatron(const Job& job) {
  MegatronSettings of = megatron_settings(job);
  Exported exported{.differs = std::move(of.differs), .cannot = std::move(of.cannot)};
  exported.cannot.insert(exported.cannot.end(), of.has_no_flag.begin(), of.has_no_flag.end());
  std::string& text = exported.text;
  text = fmt::format(
      "#!/usr/bin/env bash\n# {}.\n# For NVIDIA/Megatron-LM at d98e8a64 (2026-08-22); other "
      "versions may call settings otherwise.\nset -euo pipefail\n\n{}\n",
      what_of(job), kToFillIn);
  text += launcher(nodes_of(job), job.strategy.mesh.world());
  text += "\n";
  for (const auto& [name, value] : job.ruling.environment)
    text += fmt::format("export {}={}\n", name, value);
  text +=
      "exec torchrun --nnodes \"$NNODES\" --nproc-per-node \"$GPUS_PER_NODE\" \\\n"
      "  --node-rank \"${NODE_RANK:-0}\" --master-addr \"${MASTER_ADDR:-localhost}\" "
      "--master-port \"${MASTER_PORT:-29500}\" \\\n  \"$MEGATRON/pretrain_gpt.py\"";
  for (const Setting& s : of.settings) {
    // What is off has no flag, but where one says so.
    if (s.flag.empty() || (s.value.python == "False" && !s.flag.starts_with("--no-"))) continue;
    text += " \\\n  " + s.flag;
    if (!s.value.shell.empty()) text += " " + s.value.shell;
  }
  for (const char* flag : kOfThem) text += fmt::format(" \\\n  {}", flag);
  text += " \\\n  \"$@\"\n";
  return exported;
}

}  // namespace piper::exporting
