// One strategy, or two side by side, priced by a stack (stack/estimator.h): for those that this
// Piper's runtime does not execute.
#pragma once

#include <piper/cli/load_flags.h>
#include <piper/cli/strategy_flags.h>

#include <string>

namespace piper::cli {

// Prints time and memory by component, why the runtime does not execute it, and both under samples
// of --load. Throws InvalidInput.
int estimate_whole(const Priced& priced, const std::string& stack, const LoadFlags& load,
                   bool json);

// Both on the same stack, so that what differs is the strategy.
int compare_whole(const Priced& a, const Priced& b, const std::string& stack, bool json);

}  // namespace piper::cli
