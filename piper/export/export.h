// A strategy in the words of another trainer: the flags or the configuration with which its users
// run what Piper planned, what it does otherwise than Piper's prediction assumes, and what it
// cannot express at all.
//
//   offers.h         what its profile says that it does not run, for every trainer
//   configs/trainers/rules   what its software refuses, warns against and wants beside what: data
//   fields.h         where each field of a strategy goes, for every trainer
//   megatron_settings.h   one list of Megatron Core's settings, which three write:
//   megatron.cpp     Megatron-LM: a start script of pretrain_gpt.py
//   megatron_bridge.cpp   Megatron-Bridge: a recipe in Python
//   deepspeed.cpp    DeepSpeed: its JSON configuration
//   torchtitan.cpp   torchtitan: a start script (start_script.h) over a --module and --config
//   nemo.cpp         NeMo 2: arguments of MegatronStrategy and the data module, as YAML
#pragma once

#include <piper/base/traits.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/cost/trainer/trainer_rules.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace piper::exporting {

struct Exported {
  std::string text;  // the flags, a line each, or the document; empty when `cannot` is not
  std::vector<std::string>
      differs;  // what the trainer does otherwise, a line each; the plan still runs
  std::vector<std::string>
      cannot;  // why the trainer cannot run this plan, with the nearest that it can
};

// What is exported.
struct Job {
  const model::Model& model;
  const strategy::Strategy& strategy;
  const cluster::Cluster* machine = nullptr;  // null: nothing is known of it
  // What the rules of the trainer's software say of it: a writer writes what they want.
  cost::Ruling ruling = {};
};

// One for each trainer: what its flags can say. Whether its profile offers the plan, and its rules
// allow it, is not asked here. DeepSpeed's and torchtitan's overlaps are their defaults.
Exported to_megatron(const Job& job);
Exported to_deepspeed(const Job& job);
Exported to_torchtitan(const Job& job);
Exported to_megatron_bridge(const Job& job);
Exported to_nemo(const Job& job);

enum class Trainer : uint8_t { kMegatron, kDeepSpeed, kTorchtitan, kNemo, kMegatronBridge };
struct TrainerTraits {
  Trainer value;
  const char* name;
  const char* software;  // in messages
  const char* profile;   // the built-in trainer profile that says what it offers
  const char* family;    // how the names of all profiles of this software begin
  Exported (*write)(const Job& job);
};
inline constexpr std::array kTrainerTraits{
    TrainerTraits{Trainer::kMegatron, "megatron", "Megatron Core", "megatron", "megatron",
                  to_megatron},
    TrainerTraits{Trainer::kDeepSpeed, "deepspeed", "DeepSpeed", "deepspeed", "deepspeed",
                  to_deepspeed},
    TrainerTraits{Trainer::kTorchtitan, "torchtitan", "torchtitan", "torchtitan", "torchtitan",
                  to_torchtitan},
    TrainerTraits{Trainer::kNemo, "nemo", "Megatron Core", "megatron-core", "megatron", to_nemo},
    TrainerTraits{Trainer::kMegatronBridge, "megatron-bridge", "Megatron Core", "megatron-bridge",
                  "megatron", to_megatron_bridge}};
static_assert(are_in_order(kTrainerTraits));
constexpr const auto& rows(Trainer) { return kTrainerTraits; }
inline constexpr auto kTrainers = values_of<Trainer>();

// Requires contradictions(strategy, model) to be empty. `cannot` has also what the trainer's
// profile does not offer and what its rules forbid; `differs` what they warn against. `priced`: the
// profile that the plan was made for; where it is not of this software, or none, what the price
// hides is that of the trainer's own. `machine`: null where it is not known.
Exported export_strategy(Trainer trainer, const model::Model& model,
                         const strategy::Strategy& strategy,
                         const cost::TrainerProfile* priced = nullptr,
                         const cluster::Cluster* machine = nullptr);

}  // namespace piper::exporting
