// Batches of byte text. Which bytes a sequence of a step gets is a function of (seed, step, index of the
// sequence in the global batch) alone: no state to save, and every mesh sees the same global batch.
//
// Legend: B sequences, S tokens of a sequence, T = B * S.
#pragma once

#include <ATen/ATen.h>
#include <piper/strategy/strategy.h>
#include <piper/train/text.h>

#include <cstdint>

namespace piper::train {

struct Batch {
  at::Tensor tokens_BS;  // int64, CPU
  at::Tensor targets_T;  // int64, CPU: the byte that follows each token
};

// Where the window (sequence + 1 bytes) of a sequence starts: uniform over all starts that fit. The text holds a
// window (check_window).
int64_t window_start(const Text& text, int64_t sequence, uint64_t seed, int64_t step,
                     int64_t sequence_index);

// Index in the global batch of the first sequence of a micro-batch: ranks take consecutive shares, micro-batches
// consecutive parts of a share.
int64_t first_sequence(const strategy::Strategy& strategy, int64_t dp_index, int64_t micro_batch);

// The micro-batch of one rank: B = strategy.micro_batch_sequences, S = strategy.sequence.
Batch training_batch(const Text& text, const strategy::Strategy& strategy, uint64_t seed,
                     int64_t step, int64_t dp_index, int64_t micro_batch);

// Evaluation: window w holds tokens [w*S, w*S + S) and targets [w*S + 1, w*S + S + 1). Windows do not overlap; the
// tail that fills no window is dropped. Throws InvalidInput when the text does not hold one window.
int64_t num_evaluation_windows(const Text& text, int64_t sequence);
Batch evaluation_batch(const Text& text, int64_t sequence, int64_t first_window,
                       int64_t num_windows);

}  // namespace piper::train
