// A strategy in the words of another trainer: the flags or the configuration with which its users
// run what Piper planned, what it does otherwise than Piper's prediction assumes, and what it
// cannot express at all.
//
//   megatron.cpp     Megatron-LM: flags of pretrain_gpt.py
//   deepspeed.cpp    DeepSpeed: its JSON configuration
//   torchtitan.cpp   torchtitan 0.3: flags over a --module and --config
//   nemo.cpp         NeMo 2: arguments of MegatronStrategy and the data module, as YAML
#pragma once

#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace piper::exporting {

enum class Trainer { kMegatron, kDeepSpeed, kTorchtitan, kNemo };
const char* name(Trainer trainer);  // "megatron", "deepspeed", "torchtitan", "nemo"
std::optional<Trainer> trainer_from(std::string_view name);
std::vector<std::string> trainer_names();

struct Exported {
  std::string text;  // the flags, a line each, or the document; empty when `cannot` is not
  std::vector<std::string>
      differs;  // what the trainer does otherwise, a line each; the plan still runs
  std::vector<std::string>
      cannot;  // why the trainer cannot run this plan, with the nearest that it can
};

// Requires contradictions(strategy, model) to be empty.
Exported export_strategy(Trainer trainer, const model::Model& model,
                         const strategy::Strategy& strategy);

// One for each trainer.
Exported to_megatron(const model::Model& model, const strategy::Strategy& strategy);
Exported to_deepspeed(const model::Model& model, const strategy::Strategy& strategy);
Exported to_torchtitan(const model::Model& model, const strategy::Strategy& strategy);
Exported to_nemo(const model::Model& model, const strategy::Strategy& strategy);

}  // namespace piper::exporting
