// What a run trains on: byte text, or indexed datasets of tokens. Either is one long stream of
// tokens; they differ in how training draws from it (train/batches.h).
//
// Thread safety: immutable but for a fingerprint that is computed once; any number of threads may
// read it.
#pragma once

#include <piper/data/indexed_dataset.h>
#include <piper/data/text.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace piper::data {

// What a fingerprint is made of. Up to `whole_bytes` of tokens are read whole. A longer corpus is
// read in part: its length, and so many blocks of the text or of each dataset, evenly spaced from
// the first byte to the last. A change of length, of either end, or of a stretch as long as the
// space between two blocks is seen; a change of a few bytes in between is not.
struct FingerprintRule {
  int64_t whole_bytes = int64_t{1} << 32;
  int64_t num_blocks = 1024;
  int64_t block_bytes = 1 << 17;
};

class Corpus {
 public:
  Corpus() = default;  // no tokens
  // Tokens 0..255; not explicit: a text is a corpus.
  Corpus(Text text, const FingerprintRule& rule = {});
  // The datasets' tokens one after the other.
  explicit Corpus(std::vector<std::shared_ptr<const IndexedDataset>> datasets,
                  const FingerprintRule& rule = {});

  int64_t size() const { return end_ - begin_; }  // tokens
  bool is_indexed() const { return !datasets_.empty(); }
  const std::string& source() const { return source_; }
  // SHA-256 of the stored tokens of this part, by the rule: a run resumes on the same ones or says
  // so. "sampled-sha256:" stands before it where they were not read whole. Computed once. Throws
  // IoError.
  std::string fingerprint() const;
  // Whether `saved`, which a checkpoint holds, is that of these tokens. A `saved` of a longer text
  // that was read whole (by an older Piper) is compared with the whole, which takes as long as
  // reading it.
  bool has_fingerprint(const std::string& saved) const;
  // tokens[i] := the token at begin + i. Requires a range inside. Throws IoError.
  void read(int64_t begin, std::span<int64_t> tokens) const;
  // The part [begin, end); `what` is appended to the source ("validation part").
  Corpus part(int64_t begin, int64_t end, const std::string& what) const;

  // Throws InvalidInput naming file and position of the first token outside the vocabulary, in the
  // whole of what this is a part of. `progress` gets tokens checked and in all; may be empty.
  void check_vocabulary(int64_t vocabulary,
                        const std::function<void(int64_t, int64_t)>& progress = {}) const;

 private:
  struct Fingerprint;
  std::string hash(bool whole) const;
  int64_t num_bytes() const;  // as stored

  Text text_;
  std::vector<std::shared_ptr<const IndexedDataset>> datasets_;
  int64_t begin_ = 0, end_ = 0;  // within all of the text or datasets
  std::string source_;
  FingerprintRule rule_;
  std::shared_ptr<Fingerprint> fingerprint_;
};

// Files and folders of byte text, one after the other; or prefixes of indexed datasets;
// not both. Throws InvalidInput, IoError. `paths` is not empty.
Corpus read_corpus(const std::vector<std::filesystem::path>& paths,
                   const FingerprintRule& rule = {});

struct CorpusSplit {
  Corpus train;
  Corpus validation;  // the last tokens; shares none with training, whatever the sequence length
};
// `validation_fraction` in (0, 1); both parts get at least one token. Throws InvalidInput
// otherwise.
CorpusSplit split_corpus(const Corpus& corpus, double validation_fraction);

// Throws InvalidInput unless the corpus holds one window: sequence + 1 tokens.
void check_window(const Corpus& corpus, int64_t sequence);

}  // namespace piper::data
