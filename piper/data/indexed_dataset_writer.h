// Writes an indexed dataset (indexed_dataset.h) document by document.
//
// Both files are written under temporary names, flushed, and renamed when all is there; the index
// goes last and an older one goes first, so that whoever finds an index finds its tokens. A writer
// that is destroyed unfinished leaves no file. Memory: 4 bytes a sequence, 8 a document (less than
// the index takes on disk), and a buffer of 1 MiB.
#pragma once

#include <piper/data/token_type.h>
#include <piper/files/file_writer.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <vector>

namespace piper::data {

// One thread.
class IndexedDatasetWriter {
 public:
  // The format bounds a sequence to 2^31 - 1 tokens; a longer document is several sequences. Throws
  // IoError.
  IndexedDatasetWriter(std::filesystem::path prefix, TokenType type,
                       int64_t max_sequence_tokens = std::numeric_limits<int32_t>::max());
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  // Adds to the open document. Throws InvalidInput when a token does not fit the type, IoError.
  void append(std::span<const int64_t> tokens);
  // Closes the open document; one without tokens is a document of one empty sequence.
  void end_document();
  // Puts both files in place. The last document is closed. Throws IoError. Call once; nothing may
  // be written afterwards.
  void finish();

  int64_t num_documents() const { return static_cast<int64_t>(documents_.size()) - 1; }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  void end_sequence();
  void flush();
  void write_index(const std::filesystem::path& path) const;

  std::filesystem::path prefix_, temporary_tokens_, temporary_index_;
  TokenType type_;
  int64_t max_sequence_tokens_;
  files::FileWriter tokens_;
  std::vector<char> buffer_;
  std::vector<int32_t> lengths_;          // of the closed sequences
  std::vector<int64_t> documents_ = {0};  // first sequence of every document, the open one's last
  int64_t num_tokens_ = 0, in_sequence_ = 0;  // in_sequence_: tokens of the open sequence
  bool finished_ = false;
};

}  // namespace piper::data
