#include <piper/export/export.h>

#include <array>

namespace piper::exporting {
namespace {

constexpr std::array kTrainers{Trainer::kMegatron, Trainer::kDeepSpeed, Trainer::kTorchtitan,
                               Trainer::kNemo};

}  // namespace

const char* name(Trainer trainer) {
  switch (trainer) {
    case Trainer::kMegatron:
      return "megatron";
    case Trainer::kDeepSpeed:
      return "deepspeed";
    case Trainer::kTorchtitan:
      return "torchtitan";
    case Trainer::kNemo:
      return "nemo";
  }
  return "?";
}

std::optional<Trainer> trainer_from(std::string_view text) {
  for (const Trainer trainer : kTrainers)
    if (text == name(trainer)) return trainer;
  return std::nullopt;
}

std::vector<std::string> trainer_names() {
  std::vector<std::string> names;
  for (const Trainer trainer : kTrainers) names.emplace_back(name(trainer));
  return names;
}

Exported export_strategy(Trainer trainer, const model::Model& model,
                         const strategy::Strategy& strategy) {
  Exported exported;
  switch (trainer) {
    case Trainer::kMegatron:
      exported = to_megatron(model, strategy);
      break;
    case Trainer::kDeepSpeed:
      exported = to_deepspeed(model, strategy);
      break;
    case Trainer::kTorchtitan:
      exported = to_torchtitan(model, strategy);
      break;
    case Trainer::kNemo:
      exported = to_nemo(model, strategy);
      break;
  }
  if (!exported.cannot.empty()) exported.text.clear();
  return exported;
}

}  // namespace piper::exporting
