#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/checkpoint/safetensors_json.h>

#include <iterator>
#include <unordered_set>

namespace piper::checkpoint {
namespace {

constexpr size_t kMaxDimensions = 16;
constexpr size_t kMaxMetadata = 10'000;
constexpr int64_t kTextBegin = 8;  // in the file

std::string quote_text(const std::string& text) {
  return quote(Json(text.size() > 200 ? text.substr(0, 200) : text));
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
    const std::optional<DType> dtype = dtype_named(value);
    if (!dtype)
      stop(fmt::format("'dtype' is {}; allowed: F64, F32, F16, BF16, I64, I32, U8",
                       quote_text(value)));
    tensor_.dtype = *dtype;
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
    fail_header(file_, kTextBegin + (position_ - text_.data()), tensor_.name, what);
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

}  // namespace

SafetensorsHeader read_header_json(std::string_view text, const std::string& file) {
  return HeaderBuilder(text, file).build();
}

std::string subject(const std::string& tensor) {
  return tensor.empty() ? "" : fmt::format("tensor {}: ", quote_text(tensor));
}

void fail_header(const std::string& file, int64_t offset, const std::string& tensor,
                 const std::string& what) {
  throw SafetensorsError({fmt::format("{}: byte {}: {}{}", file, offset, subject(tensor), what)},
                         file, offset, tensor);
}

}  // namespace piper::checkpoint
