// What only this Piper and a few others run: exchanges by other ways than NCCL's, mixture layers in
// other orders, sums by other ways. A trainer without them runs the plan in the plain way.
#pragma once

#include <piper/export/export.h>

#include <string_view>

namespace piper::exporting {

// Adds a line to `exported` for each field of the strategy that `software` runs in the plain way:
// to `cannot` where the plan's memory or weights would be others, else to `differs`.
void add_plain_execution(std::string_view software, const strategy::Strategy& strategy,
                         Exported& exported);

}  // namespace piper::exporting
