// Batches of a corpus. Which tokens a sequence of a step gets is a function of (seed, step, index
// of the sequence in the global batch) alone: no state to save, and every mesh sees the same global
// batch.
//
//   byte text         a window of sequence + 1 bytes that starts anywhere, drawn anew for every
//                     sequence
//   indexed datasets  the tokens are cut into windows that start sequence tokens apart (the last
//                     token of one, a target, is the first of the next); every window once an
//                     epoch, in shuffled order (window_order.h)
//
// Documents follow one another without a boundary: a window may hold the end of one and the start
// of the next.
//
// Legend: B sequences, S tokens of a sequence, T = B * S.
#pragma once

#include <piper/data/corpus.h>
#include <piper/executor/executor_context.h>
#include <piper/strategy/strategy.h>

#include <cstdint>

namespace piper::train {

// Windows that start `sequence` tokens apart; the tail that fills none is dropped. Throws
// InvalidInput when the corpus does not hold one.
int64_t num_windows(const data::Corpus& corpus, int64_t sequence);

// Where the window of a sequence starts. `step` counts from 1; `sequence_index` is that in the
// global batch of strategy.global_batch_sequences. The corpus holds a window (check_window).
int64_t window_start(const data::Corpus& corpus, const strategy::Strategy& strategy, uint64_t seed,
                     int64_t step, int64_t sequence_index);

// Index in the global batch of the first sequence of a micro-batch: ranks take consecutive shares,
// micro-batches consecutive parts of a share.
int64_t first_sequence(const strategy::Strategy& strategy, int64_t dp_index, int64_t micro_batch);

// The micro-batch of one rank, on the CPU: B = strategy.micro_batch_sequences, S =
// strategy.sequence; the target of a token is the one that follows it. Throws InvalidInput when the
// corpus does not hold a window, IoError.
executor::MicroBatch training_batch(const data::Corpus& corpus, const strategy::Strategy& strategy,
                                    uint64_t seed, int64_t step, int64_t dp_index,
                                    int64_t micro_batch);

// Evaluation, whatever the kind of corpus: window w holds tokens [w*S, w*S + S) and targets [w*S +
// 1, w*S + S + 1). One rank's micro-batch when a mesh evaluates: of the `number`th global batch
// (from 0) of the first `limit` windows. Rows beyond the limit are ignored: their targets are -100.
executor::MicroBatch validation_batch(const data::Corpus& corpus,
                                      const strategy::Strategy& strategy, int64_t limit,
                                      int64_t number, int64_t dp_index, int64_t micro_batch);

}  // namespace piper::train
