#include <piper/schedule/counted_actions.h>
#include <piper/schedule/zb_v.h>

namespace piper::schedule {

std::vector<Action> zb_v_actions(int64_t pp, int64_t rank, int64_t num_micro_batches) {
  const int64_t written = std::max(num_micro_batches, 2 * pp - 1);
  CountedActions list(written);
  const auto whole_backward = [&](int32_t chunk) {
    list.backward_input(chunk);
    list.backward_weights(chunk);
  };
  // Until micro-batch 0 has come down the V and back up to this rank.
  for (int64_t i = 0; i < 2 * (pp - rank) - 1; ++i) list.forward(0);
  for (int64_t i = 0; i < rank; ++i) {
    list.forward(1);
    list.forward(0);
  }
  // Until its gradient has come down the other arm.
  for (int64_t i = 0; i < pp - rank; ++i) {
    list.forward(1);
    whole_backward(1);
  }
  while (list.forwards(1) < written) {
    if (list.forwards(0) < written) list.forward(0);
    whole_backward(0);
    list.forward(1);
    whole_backward(1);
  }
  // The drain, filled with the weights' parts of what it makes.
  for (int64_t i = 0; i < rank; ++i) {
    list.backward_input(0);
    list.backward_input(1);
  }
  for (int64_t i = 0; i < pp - rank; ++i) {
    list.backward_input(0);
    list.backward_weights(0);
  }
  for (int64_t i = 0; i < rank; ++i) list.backward_weights(1);
  while (list.has_weights_due()) list.backward_weights();
  return list.take(num_micro_batches);
}

}  // namespace piper::schedule
