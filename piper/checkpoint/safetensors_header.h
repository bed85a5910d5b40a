// The header of a safetensors file, read strictly: 8 bytes of its length (little-endian), JSON,
// then the data. Format: https://github.com/huggingface/safetensors#format
//
//   {"__metadata__": {"format": "pt"}, "<tensor>": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//
// Refused, as a SafetensorsError naming file, byte and tensor: a length of the header that does not
// fit the file or the format's limit; text that is not JSON of exactly this form; duplicate names
// and keys; dtypes not listed below; negative, fractional or overflowing numbers; offsets that
// disagree with dtype and shape; tensors that overlap, leave a hole, leave the file, or end before
// it does. The JSON is read as a stream, since a document tree of a hostile header would take ten
// times the header's size: memory stays below the header's size + 64 MiB.
#pragma once

#include <piper/base/error.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace piper::checkpoint {

enum class DType { kF64, kF32, kF16, kBF16, kI64, kI32, kU8 };
const char* name(DType dtype);  // "F32"
int64_t size_bytes(DType dtype);

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the data
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;  // offset of the data in the file
};

class SafetensorsError : public InvalidInput {
 public:
  SafetensorsError(std::vector<std::string> problems, std::string file, int64_t offset,
                   std::string tensor)
      : InvalidInput(std::move(problems)),
        file_(std::move(file)),
        offset_(offset),
        tensor_(std::move(tensor)) {}
  const std::string& file() const { return file_; }
  int64_t offset() const { return offset_; }             // byte of the file, of the first problem
  const std::string& tensor() const { return tensor_; }  // of the first problem; "" = none

 private:
  std::string file_;
  int64_t offset_;
  std::string tensor_;
};

inline constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr int64_t kMaxTensors = 200'000;          // of one file

// Checks the length field (the first 8 bytes) against the size of the file: the number of header
// bytes.
int64_t parse_header_length(std::string_view first_bytes, int64_t file_bytes,
                            const std::string& file);

// `text` is the header without its length; the file goes on for `data_bytes` after it.
SafetensorsHeader parse_header(std::string_view text, int64_t data_bytes, const std::string& file);

// Length field and header for these tensors (begin and end filled in already), padded to a multiple
// of 8 bytes.
std::string format_header(const std::vector<TensorEntry>& tensors,
                          const std::map<std::string, std::string>& metadata);

// Bytes of a tensor; -1 when they overflow.
int64_t tensor_bytes(DType dtype, const std::vector<int64_t>& shape);

// "[2, 3]"
std::string format_shape(const std::vector<int64_t>& shape);

}  // namespace piper::checkpoint
