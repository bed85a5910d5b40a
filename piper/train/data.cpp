#include <piper/base/error.h>
#include <piper/train/data.h>

namespace piper::train {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit flips half of the output bits.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

Batch empty_batch(int64_t num_sequences, int64_t sequence) {
  return {.tokens_BS = at::empty({num_sequences, sequence}, at::kLong),
          .targets_T = at::empty({num_sequences * sequence}, at::kLong)};
}

// Row `row` of the batch := the window that starts at `start`.
void fill_row(Batch& batch, int64_t row, int64_t sequence, const Text& text, int64_t start) {
  PIPER_CHECK(start >= 0 && start + sequence + 1 <= text.size());
  const auto* window = reinterpret_cast<const unsigned char*>(text.bytes().data()) + start;
  auto* tokens = batch.tokens_BS.data_ptr<int64_t>() + row * sequence;
  auto* targets = batch.targets_T.data_ptr<int64_t>() + row * sequence;
  for (int64_t i = 0; i < sequence; ++i) {
    tokens[i] = window[i];
    targets[i] = window[i + 1];
  }
}

}  // namespace

int64_t window_start(const Text& text, int64_t sequence, uint64_t seed, int64_t step,
                     int64_t sequence_index) {
  const auto num_starts = static_cast<uint64_t>(text.size() - sequence);
  const uint64_t random =
      mix(mix(mix(seed) ^ static_cast<uint64_t>(step)) ^ static_cast<uint64_t>(sequence_index));
  // The high half of the product maps 64 random bits to [0, num_starts) without a division's bias to small values.
  using Wide = unsigned __int128;
  return static_cast<int64_t>((static_cast<Wide>(random) * num_starts) >> 64);
}

int64_t first_sequence(const strategy::Strategy& strategy, int64_t dp_index, int64_t micro_batch) {
  return (dp_index * strategy.num_micro_batches + micro_batch) * strategy.micro_batch_sequences;
}

Batch training_batch(const Text& text, const strategy::Strategy& strategy, uint64_t seed,
                     int64_t step, int64_t dp_index, int64_t micro_batch) {
  check_window(text, strategy.sequence);
  Batch batch = empty_batch(strategy.micro_batch_sequences, strategy.sequence);
  const int64_t first = first_sequence(strategy, dp_index, micro_batch);
  for (int64_t row = 0; row < strategy.micro_batch_sequences; ++row)
    fill_row(batch, row, strategy.sequence, text,
             window_start(text, strategy.sequence, seed, step, first + row));
  return batch;
}

int64_t num_evaluation_windows(const Text& text, int64_t sequence) {
  check_window(text, sequence);
  return (text.size() - 1) / sequence;
}

Batch evaluation_batch(const Text& text, int64_t sequence, int64_t first_window,
                       int64_t num_windows) {
  Batch batch = empty_batch(num_windows, sequence);
  for (int64_t row = 0; row < num_windows; ++row)
    fill_row(batch, row, sequence, text, (first_window + row) * sequence);
  return batch;
}

}  // namespace piper::train
