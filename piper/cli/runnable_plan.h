// The answer of `piper plan` over what this Piper trains (plan/plan.h), as text and as JSON.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/plan/plan.h>

#include <cstdint>

namespace piper::cli {

// At most `top` strategies; `seconds`: what the search took.
Json to_json(const plan::Request& request, const plan::Plan& plan, int64_t top, double seconds);
// `explain`: one exchange of the best by every algorithm, too.
void print_plan(const plan::Request& request, const plan::Plan& plan, int64_t top, bool explain,
                double seconds);

}  // namespace piper::cli
