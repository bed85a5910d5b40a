#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/json.h>
#include <piper/train/safetensors_header.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <unordered_set>

namespace piper::train {
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
constexpr size_t kMaxDimensions = 16;
constexpr size_t kMaxMetadata = 10'000;
constexpr int64_t kLengthBytes = 8;

std::string quote_text(const std::string& text) {
  return quote(Json(text.size() > 200 ? text.substr(0, 200) : text));
}

[[noreturn]] void fail(const std::string& file, int64_t offset, const std::string& tensor,
                       const std::string& what) {
  const std::string subject = tensor.empty() ? "" : fmt::format("tensor {}: ", quote_text(tensor));
  throw SafetensorsError({fmt::format("{}: byte {}: {}{}", file, offset, subject, what)}, file,
                         offset, tensor);
}

// Walks over text and tells how far it has come.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at = nullptr;
  const char** position = nullptr;

  reference operator*() const { return *at; }
  CountingIterator& operator++() {
    *position = ++at;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at == other.at; }
};

// Takes nlohmann's SAX events; a state per place in the one form that is allowed.
class HeaderBuilder {
 public:
  HeaderBuilder(std::string_view text, std::string file)
      : text_(text), position_(text.data()), file_(std::move(file)) {}

  SafetensorsHeader build() {
    nlohmann::json::sax_parse(CountingIterator{text_.data(), &position_},
                              CountingIterator{text_.data() + text_.size(), &position_}, this);
    return std::move(header_);
  }

  bool null() { return refuse("null"); }
  bool boolean(bool value) { return refuse(value ? "true" : "false"); }
  bool number_integer(int64_t value) { return refuse(std::to_string(value)); }
  bool number_float(double, const std::string& text) { return refuse(text.substr(0, 40)); }
  bool binary(std::vector<uint8_t>&) { return refuse("a binary value"); }

  bool number_unsigned(uint64_t value) {
    if ((place_ != Place::kShape && place_ != Place::kOffsets) ||
        value > static_cast<uint64_t>(INT64_MAX))
      return refuse(std::to_string(value));
    std::vector<int64_t>& list = place_ == Place::kShape ? tensor_.shape : offsets_;
    if (list.size() == kMaxDimensions)
      stop(fmt::format("'{}' has more than {} numbers", key_, kMaxDimensions));
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) {
    if (place_ == Place::kMetadata) {
      if (header_.metadata.size() == kMaxMetadata)
        stop(fmt::format("more than {} keys in __metadata__", kMaxMetadata));
      if (!header_.metadata.emplace(key_, value).second)
        stop("key " + quote_text(key_) + " appears twice");
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return refuse(quote_text(value));
    const auto row = std::find_if(kDTypes.begin(), kDTypes.end(),
                                  [&](const DTypeRow& r) { return value == r.name; });
    if (row == kDTypes.end())
      stop(fmt::format("'dtype' is {}; allowed: F64, F32, F16, BF16, I64, I32, U8",
                       quote_text(value)));
    tensor_.dtype = row->dtype;
    return true;
  }

  bool start_object(size_t) {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && key_ == "__metadata__") {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kTop) {
      if (header_.tensors.size() == static_cast<size_t>(kMaxTensors))
        stop(fmt::format("more than {} tensors in one file", kMaxTensors));
      place_ = Place::kTensor;
      tensor_ = {.name = key_};
      offsets_.clear();
      keys_.clear();
    } else {
      return refuse("an object");
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::kTensor) {
      for (const char* key : {"dtype", "shape", "data_offsets"})
        if (!keys_.contains(key)) stop(fmt::format("'{}' is missing", key));
      if (offsets_.size() != 2)
        stop(fmt::format("'data_offsets' has {} numbers; allowed: 2", offsets_.size()));
      tensor_.begin = offsets_[0];
      tensor_.end = offsets_[1];
      header_.tensors.push_back(std::move(tensor_));
      tensor_ = {};
      place_ = Place::kTop;
    } else {
      place_ = place_ == Place::kMetadata ? Place::kTop : Place::kDone;
    }
    return true;
  }

  bool start_array(size_t) {
    if (place_ != Place::kTensor || key_ == "dtype") return refuse("an array");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() {
    place_ = Place::kTensor;
    return true;
  }

  bool key(std::string& name) {
    key_ = std::move(name);
    if (place_ == Place::kTop && !names_.insert(key_).second)
      stop(quote_text(key_) + " appears twice");
    if (place_ == Place::kTensor) {
      if (key_ != "dtype" && key_ != "shape" && key_ != "data_offsets")
        stop(quote_text(key_) + " is not a known key; allowed: dtype, shape, data_offsets");
      if (!keys_.insert(key_).second) stop(fmt::format("'{}' appears twice", key_));
    }
    return true;
  }

  template <class Exception>
  bool parse_error(size_t, const std::string&, const Exception& error) {
    std::string what = error.what();
    if (const size_t bracket = what.find("] "); bracket != std::string::npos)
      what = what.substr(bracket + 2);
    if (what.size() > 160) what = what.substr(0, 157) + "...";
    stop("the header is not valid JSON: " + quote_text(what));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kDone };

  [[noreturn]] void stop(const std::string& what) const {
    fail(file_, kLengthBytes + (position_ - text_.data()), tensor_.name, what);
  }

  // A value of a kind that has no business here.
  bool refuse(const std::string& value) const {
    switch (place_) {
      case Place::kStart:
      case Place::kDone:
        stop("the header is " + value + "; allowed: an object");
      case Place::kTop:
        stop(quote_text(key_) + " is " + value + "; allowed: an object");
      case Place::kMetadata:
        stop("__metadata__ " + quote_text(key_) + " is " + value + "; allowed: a string");
      case Place::kTensor:
        stop(fmt::format("'{}' is {}; allowed: {}", key_, value,
                         key_ == "dtype" ? "a string" : "an array"));
      case Place::kShape:
      case Place::kOffsets:
        stop(fmt::format("'{}' holds {}; allowed: integers from 0 to 2^63 - 1", key_, value));
    }
    return false;
  }

  std::string_view text_;
  const char* position_;
  std::string file_;
  SafetensorsHeader header_;
  Place place_ = Place::kStart;
  std::string key_;
  TensorEntry tensor_;
  std::vector<int64_t> offsets_;
  std::unordered_set<std::string> names_, keys_;
};

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

}  // namespace

const char* name(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

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
    fail(file, 0, "",
         fmt::format("the file is {} bytes long; a safetensors file begins with 8 bytes of length",
                     file_bytes));
  if (first_bytes.starts_with("PK\x03\x04") || first_bytes.starts_with("\x80\x02"))
    fail(file, 0, "",
         "is a pickle or TorchScript file, which can run code when read; convert it: load it with "
         "torch.load(..., "
         "weights_only=True) and write it with safetensors.torch.save_file");
  uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), sizeof length);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes))
    fail(file, 0, "",
         fmt::format("the header's length is {}; allowed: at most {}", length, kMaxHeaderBytes));
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes)
    fail(file, 0, "",
         fmt::format("the header's length is {}, but only {} bytes follow", length,
                     file_bytes - kLengthBytes));
  return static_cast<int64_t>(length);
}

SafetensorsHeader parse_header(std::string_view text, int64_t data_bytes, const std::string& file) {
  if (!text.starts_with('{')) fail(file, kLengthBytes, "", "the header does not begin with '{'");
  SafetensorsHeader header = HeaderBuilder(text, file).build();
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
      lines.push_back(fmt::format("{}: byte {}: {}{}", file, at,
                                  name.empty() ? "" : "tensor " + quote_text(name) + ": ", what));
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

}  // namespace piper::train
