// The second price of a strategy that this Piper executes. Its exact costs say what the runtime
// does at the rates of the micro-benchmarks; on a described machine, where no whole step was
// measured, whole steps reach less, and a stack (stack/stack.h) says how much: that is what `piper
// plan` ranks by. Whoever sees one of the two sees the other beside it.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cli/strategy_flags.h>

#include <optional>
#include <string>

namespace piper::cli {

struct StackView {
  double step_seconds = 0, mfu = 0, peak_bytes = 0;
};

// By the stack "piper". Nothing on CPUs, whose profile has whole segments.
std::optional<StackView> stack_view(const Priced& priced);

// A line, or "".
std::string to_text(const std::optional<StackView>& view);
// Adds "as_planned", when there is any.
void add_to(Json& json, const std::optional<StackView>& view);

}  // namespace piper::cli
