// Layers to stages when not every layer weighs the same: the last stage carries the head.
#pragma once

#include <cstdint>
#include <vector>

namespace piper::plan {

// Consecutive layers to pp stages so that the heaviest stage is as light as possible; `first` and
// `last` weigh on the first and the last stage besides their layers. At least one layer a stage.
// Among equals the earlier stages take fewer layers (they hold more activations in 1F1B). Requires
// 1 <= pp <= layers. `slowness`: what a stage's seconds are multiplied by; empty: all are alike.
std::vector<int64_t> balanced_split(const std::vector<double>& layer_seconds, double first,
                                    double last, int64_t pp,
                                    const std::vector<double>& slowness = {});

}  // namespace piper::plan
