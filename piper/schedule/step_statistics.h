// What the ranks sum at the end of a step beside gradients: losses, the norm, flags, and how often
// every expert was chosen. As many doubles travel in one all-reduce over the world.
#pragma once

#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstddef>
#include <cstdint>

namespace piper::schedule {

// These come first; behind them, for every mixture layer, the choices of each expert and, with a
// capacity, the rows that each computed.
enum Statistic : size_t {
  kSquaredNorm,
  kLossSum,
  kTargetTokens,
  kAuxiliaryLoss,
  kZLoss,
  kMtpLoss,
  kStops,
  kNumScalars
};

int64_t num_statistics(const model::Model& model, const strategy::Strategy& strategy);

}  // namespace piper::schedule
