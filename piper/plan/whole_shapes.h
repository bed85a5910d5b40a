// Every way to divide the devices that the model, the batch and the user's fixed axes allow: what whole_search.cpp prices.
#pragma once

#include <piper/plan/whole.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace piper::plan {

// What a way to cut a stage's ranks and a micro-batch come to: everything that layer prices depend on, and the depth.
struct WholeShape {
  int64_t pp, tp, cp, dp, ep, etp, micro;
  bool sequence_parallel;
};

// Throws InvalidInput when there is none, naming the fixed axes that nothing divides by and the nearest that do.
std::vector<WholeShape> whole_shapes(const WholeRequest& request);

// Whether an axis that may be fixed may have the value.
template <class T>
bool wanted(const std::optional<T>& fixed, T value) {
  return !fixed || *fixed == value;
}

}  // namespace piper::plan
