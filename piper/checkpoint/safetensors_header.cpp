#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/json.h>
#include <piper/checkpoint/safetensors_header.h>
#include <piper/checkpoint/safetensors_json.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace piper::checkpoint {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  int64_t size;
};
constexpr std::array<DTypeRow, 7> kDTypes = {{{DType::kF64, "F64", 8},
                                              {DType::kF32, "F32", 4},
                                              {DType::kF16, "F16", 2},
                                              {DType::kBF16, "BF16", 2},
                                              {DType::kI64, "I64", 8},
                                              {DType::kI32, "I32", 4},
                                              {DType::kU8, "U8", 1}}};
constexpr int64_t kLengthBytes = 8;

// The problem of one tensor, given where the one before it ended; "" = none.
std::string problem_of(const TensorEntry& tensor, int64_t previous_end, int64_t data_bytes) {
  const int64_t bytes = tensor_bytes(tensor.dtype, tensor.shape);
  const std::string offsets = fmt::format("data_offsets [{}, {}]", tensor.begin, tensor.end);
  if (tensor.begin > tensor.end) return offsets + " end before they begin";
  if (tensor.end > data_bytes)
    return fmt::format("{} leave the file, whose data are {} bytes long", offsets, data_bytes);
  if (bytes != tensor.end - tensor.begin)
    return fmt::format("{} hold {} bytes, but {} {} takes {}", offsets, tensor.end - tensor.begin,
                       name(tensor.dtype), format_shape(tensor.shape),
                       bytes < 0 ? "more than 2^63" : std::to_string(bytes));
  if (tensor.begin < previous_end)
    return fmt::format("{} overlap the tensor before, which ends at {}", offsets, previous_end);
  if (tensor.begin > previous_end)
    return fmt::format("{} leave a hole after the tensor before, which ends at {}", offsets,
                       previous_end);
  return "";
}

// A zip archive (torch.save, TorchScript), or pickle protocol 2 to 5.
bool begins_as_pickle(std::string_view bytes) {
  return bytes.starts_with("PK\x03\x04") ||
         (bytes.starts_with('\x80') && bytes[1] >= 2 && bytes[1] <= 5);
}

}  // namespace

const char* name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_named(std::string_view name) {
  for (const DTypeRow& row : kDTypes)
    if (name == row.name) return row.dtype;
  return std::nullopt;
}

int64_t size_bytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].size; }

int64_t tensor_bytes(DType dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = size_bytes(dtype);
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return -1;
  return bytes;
}

std::string format_shape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

int64_t parse_header_length(std::string_view first_bytes, int64_t file_bytes,
                            const std::string& file) {
  if (file_bytes < kLengthBytes || first_bytes.size() < static_cast<size_t>(kLengthBytes))
    fail_header(
        file, 0, "",
        fmt::format("the file is {} bytes long; a safetensors file begins with 8 bytes of length",
                    file_bytes));
  uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), sizeof length);
  // Read as a length their first bytes are far too much; a header of 640 bytes begins with
  // "\x80\x02", too.
  const bool is_possible = length <= static_cast<uint64_t>(file_bytes - kLengthBytes);
  if (!is_possible && begins_as_pickle(first_bytes))
    fail_header(
        file, 0, "",
        "is a pickle or TorchScript file, which can run code when read; convert it: load it with "
        "torch.load(..., "
        "weights_only=True) and write it with safetensors.torch.save_file");
  if (length > static_cast<uint64_t>(kMaxHeaderBytes))
    fail_header(
        file, 0, "",
        fmt::format("the header's length is {}; allowed: at most {}", length, kMaxHeaderBytes));
  if (!is_possible)
    fail_header(file, 0, "",
                fmt::format("the header's length is {}, but only {} bytes follow", length,
                            file_bytes - kLengthBytes));
  return static_cast<int64_t>(length);
}

SafetensorsHeader parse_header(std::string_view text, int64_t data_bytes, const std::string& file) {
  if (!text.starts_with('{'))
    fail_header(file, kLengthBytes, "", "the header does not begin with '{'");
  SafetensorsHeader header = read_header_json(text, file);
  header.data_begin = kLengthBytes + static_cast<int64_t>(text.size());
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  constexpr size_t kMaxLines = 20;
  std::vector<std::string> lines;
  int64_t offset = 0, previous_end = 0;
  std::string tensor;
  const auto note = [&](const std::string& name, int64_t at, const std::string& what) {
    if (lines.empty()) offset = at, tensor = name;
    if (lines.size() < kMaxLines)
      lines.push_back(fmt::format("{}: byte {}: {}{}", file, at, subject(name), what));
  };
  for (const TensorEntry& entry : header.tensors) {
    const std::string what = problem_of(entry, previous_end, data_bytes);
    if (!what.empty())
      note(entry.name, header.data_begin + std::min(entry.begin, data_bytes), what);
    previous_end = std::clamp(entry.end, previous_end, std::max(previous_end, data_bytes));
  }
  if (lines.empty() && previous_end != data_bytes)
    note("", header.data_begin + previous_end,
         fmt::format("{} bytes follow the last tensor", data_bytes - previous_end));
  if (!lines.empty()) throw SafetensorsError(std::move(lines), file, offset, tensor);
  return header;
}

std::string format_header(const std::vector<TensorEntry>& tensors,
                          const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) json += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  for (const TensorEntry& tensor : tensors)
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json.size() > 1 ? "," : "", Json(tensor.name).dump(), name(tensor.dtype),
                        fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const uint64_t length = json.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + json;
}

}  // namespace piper::checkpoint
