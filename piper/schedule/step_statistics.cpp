#include <piper/schedule/step_statistics.h>

namespace piper::schedule {

int64_t num_statistics(const model::Model& model, const strategy::Strategy& strategy) {
  int64_t experts = 0;
  for (const model::Layer& layer : model.layers)
    if (layer.feed_forward.is_moe()) experts += layer.feed_forward.num_experts;
  return kNumScalars + (strategy.capacity.is_limited() ? 2 : 1) * experts;
}

}  // namespace piper::schedule
