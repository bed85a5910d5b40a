// Which library and form the ranks of a run compute matrix products with: all as process 0's
// cluster file says, and a resumed run as it began.
#pragma once

#include <piper/train/run_context.h>
#include <piper/train/starting_point.h>

#include <string>

namespace piper::train {

struct ChosenProducts {
  std::string libraries;  // nn::ProductChoice::text(); empty: by the rule
  std::string grouped;    // cost::GroupedChoice::text(); empty: one product for all

  // For the run that resumes from it.
  void add_to(checkpoint::TrainState& state) const;
};

// All processes call it. Sets the choice (nn/product.h, nn/experts_grouped.h) and says it. Throws
// InvalidInput, CommError.
ChosenProducts choose_products(const RunContext& run, const StartingPoint& start);

}  // namespace piper::train
