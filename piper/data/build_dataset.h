// Makes an indexed dataset out of text or of tokens that another program has cut.
//
//   name.txt, anything else   one document, its bytes the tokens 0..255
//   name.jsonl                a document a line: under the key either a text (the bytes of its UTF-8) or an array of integers
//                             (the tokens themselves); all lines of a dataset hold the same kind
//
// Files are read in pieces: memory is that of one line and of the index (indexed_dataset_writer.h).
#pragma once

#include <piper/data/token_type.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace piper::data {

inline constexpr int64_t kMaxLineBytes = int64_t{256} << 20;  // of a JSONL file
inline constexpr int64_t kEndOfDocument = 256;                // after a document of bytes

struct DatasetRequest {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path prefix;
  // JSONL lines have their text under this key. When given, every input is JSONL, else those named
  // *.jsonl are, with the key "text".
  std::optional<std::string> jsonl_key;
  // After every document of bytes: token 256, so that the vocabulary is 257.
  bool append_end_of_document = false;
  // Arrays of integers stay below it, and their token type follows from it; 0 = unknown, int32.
  // Texts have theirs.
  int64_t vocabulary = 0;
  bool overwrite = false;
  std::function<void(int64_t input_bytes_done)> progress;  // may be empty
};

struct DatasetSummary {
  int64_t documents = 0;
  int64_t empty_documents = 0;  // left out
  int64_t tokens = 0;
  int64_t input_bytes = 0;
  TokenType type = TokenType::kUint8;
  int64_t vocabulary = 0;  // 0 = unknown
};

// Throws InvalidInput naming file, line, key and what is allowed; IoError. After an error no file
// is left.
DatasetSummary build_dataset(const DatasetRequest& request);

}  // namespace piper::data
