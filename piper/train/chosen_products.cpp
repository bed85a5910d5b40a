#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cost/grouped_choice.h>
#include <piper/nn/experts_grouped.h>
#include <piper/nn/product.h>
#include <piper/nn/product_onednn.h>
#include <piper/profile/measure_products.h>
#include <piper/train/chosen_products.h>
#include <piper/train/process_agreement.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace piper::train {
namespace {

// These are keys in TrainState::extra. The first has nn::ProductChoice::text(), where the run
// computes by a measured choice.
constexpr const char* kProductLibraries = "product_libraries";
constexpr const char* kGroupedProducts = "grouped_products";  // cost::GroupedChoice::text()

// What the run began with, as a choice's text; empty where it chose nothing.
template <class Choice>
std::string resumed_choice(const StartingPoint& start, const char* key) {
  const Json* found = start.saved(key);
  if (found == nullptr) return "";
  try {
    return Choice::parse(found->is_string() ? found->get<std::string>() : "").text();
  } catch (const InvalidInput& problem) {
    throw InvalidInput(fmt::format("{}: {}", start.checkpoint_path(), problem.what()));
  }
}

// Experts on devices are one product for all, in bf16, unless another was measured to be faster.
std::string choose_grouped_products(const RunContext& run, const StartingPoint& start) {
  if (run.request.devices.is_cpu() ||
      run.request.strategy.precision != strategy::Precision::kBf16) {
    nn::choose_grouped_products({});
    return "";
  }
  const std::string text = on_first_process(run.world, "products of experts", [&]() -> std::string {
    if (start.is_resumed()) return resumed_choice<cost::GroupedChoice>(start, kGroupedProducts);
    return cost::grouped_choice_of(run.request.cluster).text();
  });
  if (text.empty()) {
    nn::choose_grouped_products({});
    return "";
  }
  const auto choice = cost::GroupedChoice::parse(text);
  nn::choose_grouped_products(choice);
  run.say(
      fmt::format("experts in bf16: one product for all at {} of {} measured sizes, one by one at "
                  "the rest ({})",
                  choice.num_grouped(), choice.num_points(),
                  start.is_resumed() ? "as the run began" : "as the cluster file measured"));
  return text;
}

}  // namespace

void ChosenProducts::add_to(checkpoint::TrainState& state) const {
  if (!libraries.empty()) state.extra[kProductLibraries] = libraries;
  if (!grouped.empty()) state.extra[kGroupedProducts] = grouped;
}

ChosenProducts choose_products(const RunContext& run, const StartingPoint& start) {
  ChosenProducts chosen{.grouped = choose_grouped_products(run, start)};
  chosen.libraries = on_first_process(run.world, "libraries of products", [&]() -> std::string {
    if (start.is_resumed()) return resumed_choice<nn::ProductChoice>(start, kProductLibraries);
    const auto choice = profile::product_choice_of(run.request.cluster.curves);
    return choice ? choice->text() : std::string();
  });
  if (chosen.libraries.empty()) {
    nn::choose_products(std::nullopt);
    return chosen;
  }
  const auto choice = nn::ProductChoice::parse(chosen.libraries);
  if (!nn::choose_products(choice)) {  // PIPER_PRODUCTS decides, so the checkpoint says nothing
    chosen.libraries.clear();
    return chosen;
  }
  run.say(fmt::format("matrix products: oneDNN for {} of {} classes, libtorch for the rest ({})",
                      choice.num_onednn(), nn::product_classes().size(),
                      start.is_resumed() ? "as the run began" : "as the cluster file measured"));
  const std::vector<std::string> present = on_all_processes(
      run.world, "oneDNN", [] { return std::string(nn::has_onednn() ? "yes" : ""); });
  if (choice.num_onednn() > 0 && std::ranges::count(present, "") > 0)
    run.say(
        fmt::format("{} of {} processes have no oneDNN: libtorch does all products there, and the "
                    "last bits differ from those of a run that has it",
                    std::ranges::count(present, ""), present.size()));
  return chosen;
}

}  // namespace piper::train
