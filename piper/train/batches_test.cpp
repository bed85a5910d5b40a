#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/data/indexed_dataset_writer.h>
#include <piper/train/batches.h>
#include <piper/train/evaluate.h>
#include <testing/data/test_text.h>
#include <tests/test_folder.h>

#include <set>

namespace piper::train {
namespace {

strategy::Strategy batches_strategy(int64_t dp, int64_t micro_batches, int64_t sequences,
                                    int64_t sequence) {
  strategy::Strategy s;
  s.mesh = {.pp = 1, .ep = 1, .dp = dp};
  s.sequence = sequence;
  s.micro_batch_sequences = sequences;
  s.num_micro_batches = micro_batches;
  s.global_batch_sequences = dp * micro_batches * sequences;
  return s;
}

// All sequences of a step as strings, in the order of the global batch.
std::vector<std::string> global_batch(const data::Corpus& text, const strategy::Strategy& s,
                                      uint64_t seed, int64_t step) {
  std::vector<std::string> sequences;
  for (int64_t dp = 0; dp < s.mesh.dp; ++dp)
    for (int64_t micro = 0; micro < s.num_micro_batches; ++micro) {
      const executor::MicroBatch batch = training_batch(text, s, seed, step, dp, micro);
      REQUIRE(batch.tokens_BS.sizes() == at::IntArrayRef({s.micro_batch_sequences, s.sequence}));
      REQUIRE(batch.targets_T.sizes() == at::IntArrayRef({s.micro_batch_sequences * s.sequence}));
      const auto* tokens = batch.tokens_BS.data_ptr<int64_t>();
      const auto* targets = batch.targets_T.data_ptr<int64_t>();
      for (int64_t row = 0; row < s.micro_batch_sequences; ++row) {
        std::string window(1, static_cast<char>(tokens[row * s.sequence]));
        for (int64_t i = 0; i < s.sequence; ++i) {
          if (i > 0) CHECK(tokens[row * s.sequence + i] == targets[row * s.sequence + i - 1]);
          window += static_cast<char>(targets[row * s.sequence + i]);
        }
        sequences.push_back(window);
      }
    }
  return sequences;
}

// The bytes' values as an indexed dataset.
data::Corpus indexed(const piper::testing::TestFolder& folder, const std::string& name,
                     std::string_view bytes) {
  data::IndexedDatasetWriter writer(folder.path() / name, data::TokenType::kUint16);
  const auto* first = reinterpret_cast<const unsigned char*>(bytes.data());
  writer.append(std::vector<int64_t>(first, first + bytes.size()));
  writer.finish();
  return data::read_corpus({folder.path() / name});
}

data::Text alphabet() {
  std::string bytes;
  for (int i = 0; i < 997; ++i) bytes += static_cast<char>(i * 31 % 251);
  return data::Text(bytes, "alphabet");
}

TEST_CASE("every mesh sees the same global batch, and each sequence is a window of the text") {
  const data::Text text = alphabet();
  const auto reference = global_batch(text, batches_strategy(1, 1, 12, 7), 5, 3);
  CHECK(reference.size() == 12);
  for (const auto& window : reference) CHECK(bytes_of(text).find(window) != std::string::npos);
  CHECK(global_batch(text, batches_strategy(4, 3, 1, 7), 5, 3) == reference);
  CHECK(global_batch(text, batches_strategy(2, 2, 3, 7), 5, 3) == reference);
  CHECK(global_batch(text, batches_strategy(1, 1, 12, 7), 5, 4) != reference);
  CHECK(global_batch(text, batches_strategy(1, 1, 12, 7), 6, 3) != reference);
}

TEST_CASE("starts are spread evenly over all windows that fit, the last one included") {
  const data::Text text("0123456789", "digits");
  std::vector<int> hits(8, 0);  // 10 bytes, windows of 3: starts 0..7
  for (int64_t step = 0; step < 1000; ++step)
    for (int64_t index = 0; index < 8; ++index)
      ++hits.at(
          static_cast<size_t>(window_start(text, batches_strategy(1, 1, 8, 2), 1, step, index)));
  for (const int count : hits)
    CHECK(std::abs(count - 1000) < 150);  // 5 standard deviations of 29.6
}

TEST_CASE("a dataset's windows are read once an epoch, the same by every mesh, across steps") {
  const piper::testing::TestFolder folder;
  const data::Text text = alphabet();  // 997 tokens: 142 windows of 7 + 1
  const data::Corpus corpus = indexed(folder, "a", bytes_of(text));
  REQUIRE(num_windows(corpus, 7) == 142);
  std::vector<std::string> epoch, again;
  for (int64_t step = 1; step <= 72; ++step) {  // 4 sequences a step: two epochs are 71 steps
    const auto batch = global_batch(corpus, batches_strategy(1, 1, 4, 7), 5, step);
    CHECK(global_batch(corpus, batches_strategy(2, 2, 1, 7), 5, step) == batch);
    for (const std::string& window : batch)
      if (epoch.size() < 142)
        epoch.push_back(window);
      else if (again.size() < 142)
        again.push_back(window);
  }
  std::multiset<std::string> expected;
  for (size_t w = 0; w < 142; ++w) expected.emplace(bytes_of(text).substr(w * 7, 8));
  CHECK(std::multiset<std::string>(epoch.begin(), epoch.end()) == expected);
  CHECK(std::multiset<std::string>(again.begin(), again.end()) == expected);
  CHECK(epoch != again);
  CHECK(global_batch(corpus, batches_strategy(1, 1, 4, 7), 6, 1) !=
        global_batch(corpus, batches_strategy(1, 1, 4, 7), 5, 1));
}

TEST_CASE("a mesh validates on the first windows in order, and ignores what fills its last batch") {
  const data::Text text("0123456789abc", "digits");  // 4 windows of 3 + 1
  const strategy::Strategy s = batches_strategy(2, 1, 1, 3);
  for (int64_t window = 0; window < 4; ++window) {
    const executor::MicroBatch batch = validation_batch(text, s, 3, window / 2, window % 2, 0);
    if (window < 3) {
      const int64_t first = '0' + 3 * window;
      CHECK(at::equal(batch.tokens_BS, at::arange(first, first + 3, at::kLong).view({1, 3})));
      CHECK(at::equal(batch.targets_T, at::arange(first + 1, first + 4, at::kLong)));
    } else {
      CHECK(at::equal(batch.targets_T, at::full({3}, -100, at::kLong)));
    }
  }
}

TEST_CASE("evaluation windows do not overlap, targets are shifted by one, the tail is dropped") {
  const data::Text text("0123456789", "digits");
  CHECK(num_windows(text, 3) == 3);  // targets end at byte 9, the last
  CHECK(num_windows(text, 4) == 2);
  CHECK(num_windows(text, 9) == 1);
  CHECK_THROWS_AS(num_windows(text, 10), InvalidInput);
  const strategy::Strategy s = batches_strategy(1, 1, 2, 4);
  const executor::MicroBatch batch = validation_batch(text, s, 2, 0, 0, 0);
  CHECK(at::equal(batch.tokens_BS, at::arange('0', '8', at::kLong).view({2, 4})));
  CHECK(at::equal(batch.targets_T, at::arange('1', '9', at::kLong)));
}

TEST_CASE(
    "one rank evaluates as many windows at once as make 2,048 tokens, if that changes nothing") {
  strategy::Strategy s = batches_strategy(1, 3, 2, 256);
  const auto at_once = [&](int64_t num_windows) {
    const strategy::Strategy wide = in_wide_batches(s, num_windows);
    CHECK(wide.num_micro_batches * wide.micro_batch_sequences == wide.global_batch_sequences);
    return wide.micro_batch_sequences;
  };
  CHECK(at_once(100) == 8);
  CHECK(at_once(5) == 5);  // all there are
  s.sequence = 4096;
  CHECK(at_once(100) == 1);
  const strategy::Strategy given = s;
  s.capacity.factor = 1.25;  // counted in the micro-batch
  CHECK(strategy::to_json(in_wide_batches(s, 100)) == strategy::to_json(s));
  s = given;
  s.mesh.dp = 2;
  CHECK(strategy::to_json(in_wide_batches(s, 100)) == strategy::to_json(s));
}

}  // namespace
}  // namespace piper::train
