// Tokenised documents in the two files of Megatron-LM, PREFIX.idx and PREFIX.bin, read strictly.
// Source: Megatron-LM, core/datasets/indexed_dataset.py (_IndexWriter), version 1, little-endian.
//
//   .idx  0  "MMIDIDX\0\0"
//         9  uint64  version, 1
//        17  uint8   token type (token_type.h)
//        18  uint64  S, the number of sequences
//        26  uint64  D + 1, where D is the number of documents
//        34  int32[S]      length of every sequence, tokens
//            int64[S]      where it starts in .bin, bytes
//            int64[D + 1]  the first sequence of every document, and S
//   .bin     the tokens, one sequence after the other
//
// All of the index is checked when it is opened. Refused, as InvalidInput naming file and byte: a
// file cut anywhere or longer than its counts say; another magic, version or token type; a negative
// length; a pointer that is not where the sequence before ends (so no overlap, no hole, no
// overflow); document indices that do not ascend from 0 to S; a .bin that is shorter or longer than
// the sequences; modes of multimodal data. What is left is one stream of tokens. Their values are
// checked by check_tokens, which reads all of .bin. Memory: 1 MiB, however long the files are; what
// an index claims is never allocated.
#pragma once

#include <piper/base/file_reader.h>
#include <piper/data/token_type.h>
#include <piper/files/sha256.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

namespace piper::data {

struct TokenRange {
  int64_t begin = 0, end = 0;  // positions in the stream of all tokens
  bool operator==(const TokenRange&) const = default;
};

// Immutable; any number of threads may read at once. The files are held open: replacing them does
// not disturb a reader.
class IndexedDataset {
 public:
  // Throws InvalidInput as above; IoError when a file is absent or unreadable.
  explicit IndexedDataset(const std::filesystem::path& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_bytes() const { return index_.size() + tokens_.size(); }  // of both files

  // The tokens of a document: those of its sequences. Requires 0 <= document < num_documents().
  // Throws IoError.
  TokenRange document(int64_t document) const;
  // tokens[i] := the token at begin + i. Requires a range inside the stream. Throws IoError.
  void read(int64_t begin, std::span<int64_t> tokens) const;
  // The range's bytes in .bin. Throws IoError.
  void hash(TokenRange range, files::Sha256& sha256) const;

 private:
  void read_header();
  void check_sequences() const;
  void check_documents() const;
  [[noreturn]] void refuse(int64_t byte, const std::string& what) const;
  int64_t lengths_begin() const { return 34; }
  int64_t pointers_begin() const { return lengths_begin() + num_sequences_ * 4; }
  int64_t documents_begin() const { return pointers_begin() + num_sequences_ * 8; }

  std::string prefix_;
  FileReader index_, tokens_;
  TokenType type_ = TokenType::kUint8;
  int64_t num_sequences_ = 0, num_documents_ = 0, num_tokens_ = 0;
};

// Reads all tokens: the largest (-1 when there are none). `vocabulary` = 0 allows every token that
// is not negative. Throws InvalidInput naming file, position and byte of the first token outside 0
// .. vocabulary - 1. `progress` gets tokens read and in all; may be empty.
int64_t check_tokens(const IndexedDataset& dataset, int64_t vocabulary,
                     const std::function<void(int64_t, int64_t)>& progress = {});

std::filesystem::path index_path(const std::filesystem::path& prefix);   // PREFIX.idx
std::filesystem::path tokens_path(const std::filesystem::path& prefix);  // PREFIX.bin

// Whether `path` is the prefix of an indexed dataset. Throws InvalidInput when it means one but is
// none: one of the two files is missing, or `path` names one of the files instead of what they
// share.
bool names_indexed_dataset(const std::filesystem::path& path);

}  // namespace piper::data
