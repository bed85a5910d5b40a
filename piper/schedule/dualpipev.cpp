#include <piper/schedule/counted_actions.h>
#include <piper/schedule/dualpipev.h>

namespace piper::schedule {
namespace {

void forward_and_backward(CountedActions& list, int32_t forward_chunk, bool is_pair = true) {
  list.forward(forward_chunk, is_pair);
  list.backward(1 - forward_chunk);
}

// 2 (rank+1) backwards, of chunk 1 and 0 in turn, the last rank+1 of them split.
void drain_both_arms(CountedActions& list, int64_t rank) {
  for (int64_t i = 0; i < 2 * (rank + 1); ++i) {
    const int32_t chunk = i % 2 == 0 ? 1 : 0;
    if (i > rank)
      list.backward_input(chunk);
    else
      list.backward(chunk);
  }
}

}  // namespace

std::vector<Action> dualpipev_actions(int64_t pp, int64_t rank, int64_t num_micro_batches) {
  const int64_t written = std::max(num_micro_batches, 2 * pp);
  const int64_t behind = pp - rank - 1;  // ranks deeper in the V
  CountedActions list(written);
  for (int64_t i = 0; i < 2 * behind; ++i) list.forward(0);
  for (int64_t i = 0; i < rank + 1; ++i) {
    list.forward(0);
    list.forward(1);
  }
  for (int64_t i = 0; i < behind; ++i) {
    list.backward_input(1);
    list.backward_weights();
    list.forward(1);
  }
  for (int64_t i = 0; i < written - 2 * pp + rank + 1; ++i) {
    forward_and_backward(list, 0, i > 0 || behind > 0);
    forward_and_backward(list, 1);
  }
  for (int64_t i = 0; i < behind; ++i) {
    list.backward(1);
    forward_and_backward(list, 1);
  }
  drain_both_arms(list, rank);
  for (int64_t i = 0; i < behind; ++i) {
    list.backward_weights();
    list.backward_input(0);
  }
  while (list.has_weights_due()) list.backward_weights();
  return list.take(num_micro_batches);
}

}  // namespace piper::schedule
