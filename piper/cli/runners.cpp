#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/cli/runners.h>
#include <piper/export/export.h>
#include <piper/strategy/runnable.h>

#include <algorithm>

namespace piper::cli {

std::vector<std::string> runners_of(const model::Model& model, const strategy::Strategy& s) {
  std::vector<std::string> runners;
  for (const exporting::Trainer trainer : exporting::kTrainers)
    if (exporting::export_strategy(trainer, model, s).cannot.empty())
      runners.emplace_back(traits(trainer).name);
  if (strategy::untrainable(model, s).empty() && strategy::runs(s.precision))
    runners.emplace_back("piper");
  return runners;
}

std::string in_words(const std::vector<std::string>& runners) {
  std::vector<std::string> trainers = runners;
  const bool has_piper = std::erase(trainers, "piper") > 0;
  std::string text = trainers.empty()
                         ? "no trainer that piper export knows"
                         : fmt::format("{} (piper export --to)", fmt::join(trainers, ", "));
  if (has_piper) text += ", and this Piper: on CPUs; its CUDA build has not run on a GPU yet";
  return text;
}

}  // namespace piper::cli
