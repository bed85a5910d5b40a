// A safetensors file, and a header alone (or no mutation of it would pass the length field):
// accepted tensors tile the data.
#include <piper/checkpoint/safetensors_header.h>

#include <cstring>

#include "fuzz.h"

namespace piper::fuzz {
namespace {

constexpr size_t kLengthBytes = 8;

void read_header(std::string_view text, int64_t data_bytes) {
  const checkpoint::SafetensorsHeader header = checkpoint::parse_header(text, data_bytes, "f");
  int64_t end = 0;
  for (const checkpoint::TensorEntry& tensor : header.tensors) {
    FUZZ_CHECK(tensor.begin == end && tensor.end >= end);
    FUZZ_CHECK(checkpoint::tensor_bytes(tensor.dtype, tensor.shape) == tensor.end - tensor.begin);
    end = tensor.end;
  }
  FUZZ_CHECK(end == data_bytes);
  const std::string written = checkpoint::format_header(header.tensors, header.metadata);
  const auto again =
      checkpoint::parse_header(std::string_view(written).substr(kLengthBytes), data_bytes, "f");
  FUZZ_CHECK(again.tensors.size() == header.tensors.size() && again.metadata == header.metadata);
}

void read_file(std::string_view file) {
  const auto size = static_cast<int64_t>(file.size());
  const int64_t length = checkpoint::parse_header_length(file.substr(0, kLengthBytes), size, "f");
  const std::string_view rest = file.substr(kLengthBytes);
  read_header(rest.substr(0, static_cast<size_t>(length)),
              static_cast<int64_t>(rest.size()) - length);
}

}  // namespace

// With 'H' in front: two bytes of the data's size, then the header's text.
void fuzz(std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  if (!text.starts_with('H') || text.size() < 3) return read_file(text);
  uint16_t data_bytes = 0;
  std::memcpy(&data_bytes, &text[1], sizeof data_bytes);
  read_header(text.substr(3), data_bytes);
}

}  // namespace piper::fuzz
