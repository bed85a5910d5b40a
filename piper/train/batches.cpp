#include <piper/base/error.h>
#include <piper/base/hash.h>
#include <piper/data/window_order.h>
#include <piper/train/batches.h>

#include <algorithm>
#include <vector>

namespace piper::train {
namespace {

executor::MicroBatch empty_batch(int64_t num_sequences, int64_t sequence) {
  return {.tokens_BS = at::empty({num_sequences, sequence}, at::kLong),
          .targets_T = at::empty({num_sequences * sequence}, at::kLong)};
}

// Row `row` of the batch := the window that starts at `start`.
void fill_row(executor::MicroBatch& batch, int64_t row, int64_t sequence,
              const data::Corpus& corpus, int64_t start) {
  std::vector<int64_t> window(static_cast<size_t>(sequence) + 1);
  corpus.read(start, window);
  std::copy_n(window.begin(), sequence, batch.tokens_BS.data_ptr<int64_t>() + row * sequence);
  std::copy_n(window.begin() + 1, sequence, batch.targets_T.data_ptr<int64_t>() + row * sequence);
}

// Uniform over all starts that fit.
int64_t random_start(int64_t num_starts, uint64_t seed, int64_t step, int64_t sequence_index) {
  const uint64_t random = splitmix64(splitmix64(splitmix64(seed) ^ static_cast<uint64_t>(step)) ^
                                     static_cast<uint64_t>(sequence_index));
  // The high half of the product maps 64 random bits to [0, num_starts) without a division's bias
  // to small values.
  using Wide = unsigned __int128;
  return static_cast<int64_t>((static_cast<Wide>(random) * static_cast<uint64_t>(num_starts)) >>
                              64);
}

}  // namespace

int64_t num_windows(const data::Corpus& corpus, int64_t sequence) {
  data::check_window(corpus, sequence);
  return (corpus.size() - 1) / sequence;
}

int64_t window_start(const data::Corpus& corpus, const strategy::Strategy& strategy, uint64_t seed,
                     int64_t step, int64_t sequence_index) {
  const int64_t sequence = strategy.sequence;
  if (!corpus.is_indexed())
    return random_start(corpus.size() - sequence, seed, step, sequence_index);
  const int64_t number = (step - 1) * strategy.global_batch_sequences + sequence_index;
  return data::shuffled_window(number, num_windows(corpus, sequence), seed) * sequence;
}

int64_t first_sequence(const strategy::Strategy& strategy, int64_t dp_index, int64_t micro_batch) {
  return (dp_index * strategy.num_micro_batches + micro_batch) * strategy.micro_batch_sequences;
}

executor::MicroBatch training_batch(const data::Corpus& corpus, const strategy::Strategy& strategy,
                                    uint64_t seed, int64_t step, int64_t dp_index,
                                    int64_t micro_batch) {
  data::check_window(corpus, strategy.sequence);
  executor::MicroBatch batch = empty_batch(strategy.micro_batch_sequences, strategy.sequence);
  const int64_t first = first_sequence(strategy, dp_index, micro_batch);
  for (int64_t row = 0; row < strategy.micro_batch_sequences; ++row)
    fill_row(batch, row, strategy.sequence, corpus,
             window_start(corpus, strategy, seed, step, first + row));
  return batch;
}

executor::MicroBatch validation_batch(const data::Corpus& corpus,
                                      const strategy::Strategy& strategy, int64_t limit,
                                      int64_t number, int64_t dp_index, int64_t micro_batch) {
  PIPER_CHECK(limit >= 1 && limit <= num_windows(corpus, strategy.sequence));
  const int64_t sequence = strategy.sequence;
  executor::MicroBatch batch = empty_batch(strategy.micro_batch_sequences, sequence);
  const int64_t first =
      number * strategy.global_batch_sequences + first_sequence(strategy, dp_index, micro_batch);
  for (int64_t row = 0; row < strategy.micro_batch_sequences; ++row) {
    const bool counts = first + row < limit;
    fill_row(batch, row, sequence, corpus, counts ? (first + row) * sequence : 0);
    if (!counts) batch.targets_T.narrow(0, row * sequence, sequence).fill_(-100);
  }
  return batch;
}

}  // namespace piper::train
