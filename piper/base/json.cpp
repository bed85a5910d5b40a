#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/file_reader.h>
#include <piper/base/json.h>
#include <piper/base/printable.h>
#include <piper/base/suggest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <unordered_set>

namespace piper {
namespace {

constexpr size_t kMaxDepth = 64;

// A text of any bytes as UTF-8, and back.
//
//   "r\xFFn"    <->  "bytes:r%FFn"        no UTF-8: each byte that is no letter, digit or one of
//                                         -._/ is written in two hexadecimal digits
//   "bytes:x"   <->  "bytes:bytes%3Ax"    what would be taken for the above
constexpr std::string_view kBytesMark = "bytes:";

bool is_plain(const std::string& text) { return is_utf8(text) && !text.starts_with(kBytesMark); }

std::string plain(const std::string& text) {
  if (is_plain(text)) return text;
  std::string encoded(kBytesMark);
  for (const char c : text) {
    const bool stays = std::string_view("-._/").find(c) != std::string_view::npos ||
                       (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    encoded += stays ? std::string(1, c) : fmt::format("%{:02X}", static_cast<uint8_t>(c));
  }
  return encoded;
}

// What plain() made of a text; any other text as it is.
std::string from_plain(std::string text) {
  if (!text.starts_with(kBytesMark)) return text;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  std::string bytes;
  for (size_t i = kBytesMark.size(); i < text.size(); ++i) {
    if (text[i] != '%') {
      bytes += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) return text;
    bytes += static_cast<char>(16 * high + low);
    i += 2;
  }
  return plain(bytes) == text ? bytes : text;
}

bool has_plain_texts(const Json& json) {
  if (json.is_string()) return is_plain(json.get_ref<const std::string&>());
  if (json.is_object())
    return std::ranges::all_of(json.items(), [](const auto& item) {
      return is_plain(item.key()) && has_plain_texts(item.value());
    });
  return !json.is_array() ||
         std::ranges::all_of(json, [](const Json& value) { return has_plain_texts(value); });
}

Json with_plain_texts(const Json& json) {
  if (json.is_string()) return plain(json.get<std::string>());
  if (!json.is_structured()) return json;
  Json copy = json.is_object() ? Json::object() : Json::array();
  for (const auto& item : json.items())
    if (json.is_object())
      copy[plain(item.key())] = with_plain_texts(item.value());
    else
      copy.push_back(with_plain_texts(item.value()));
  return copy;
}

// Builds the document from nlohmann's SAX events; the parser itself keeps no recursion, so depth is
// ours to bound.
class StrictBuilder {
 public:
  explicit StrictBuilder(std::string source) : source_(std::move(source)) {}

  Json take() { return std::move(root_); }

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(int64_t value) { return put(value); }
  bool number_unsigned(uint64_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      too_large(std::to_string(value));
    return put(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string& text) {
    // An integer literal that overflowed arrives here as a double: it must not lose digits in
    // silence.
    if (text.find_first_of(".eE") == std::string::npos) too_large(text);
    if (!std::isfinite(value)) out_of_range(text);
    return put(value);
  }
  bool string(std::string& value) { return put(from_plain(std::move(value))); }
  bool binary(std::vector<uint8_t>&) { return fail("binary value"); }

  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    key_ = name = from_plain(std::move(name));
    // A set beside each open object: looking a key up in an ordered_json is linear.
    if (!keys_.back().insert(name).second)
      fail(fmt::format("key '{}' appears twice", printable(name)));
    return true;
  }

  template <class Exception>
  bool parse_error(size_t position, const std::string& token, const Exception& error) {
    constexpr int kNumberOverflow = 406;  // of nlohmann::json's table of exceptions
    if (error.id == kNumberOverflow) out_of_range(token);
    std::string what = error.what();
    if (const size_t bracket = what.find("] "); bracket != std::string::npos)
      what = what.substr(bracket + 2);
    // What was read last may be as long as the file.
    what = what.substr(0, what.find("; last read"));
    fail(fmt::format("is not valid JSON at byte {}: {}", position, one_line(what)));
    return false;
  }

 private:
  std::string subject(const std::string& number) const {
    const std::string shown = printable(number.substr(0, 40));
    return key_.empty() ? fmt::format("the number {}", shown)
                        : fmt::format("'{}' is {}", printable(key_), shown);
  }
  [[noreturn]] void too_large(const std::string& number) {
    fail(subject(number) +
         ", which does not fit 64 bits; allowed: an integer up to 9223372036854775807");
  }
  [[noreturn]] void out_of_range(const std::string& number) {
    fail(subject(number) + ", which is out of range; allowed: a number up to 1.7e308");
  }

  [[noreturn]] bool fail(const std::string& what) {
    throw InvalidInput(source_ + ": " + one_line(what));
  }

  Json* attach(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &parent.get_ref<Json::object_t&>().emplace_back(key_, std::move(value)).second;
  }
  bool put(Json value) {
    attach(std::move(value));
    return true;
  }
  bool open(Json container) {
    if (stack_.size() >= kMaxDepth) fail(fmt::format("nested deeper than {} levels", kMaxDepth));
    // Pointers into the parent stay valid: a container is filled only while it is on top of the
    // stack.
    stack_.push_back(attach(std::move(container)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    stack_.pop_back();
    keys_.pop_back();
    key_.clear();
    return true;
  }

  std::string source_;
  Json root_;
  std::vector<Json*> stack_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the open containers
  std::string key_;
};

std::string type_of(const Json& value) {
  if (value.is_number_integer()) return "an integer";
  if (value.is_number_float()) return "a fraction";
  return value.is_null() ? "null" : std::string("of type ") + value.type_name();
}

const Json kNull;

}  // namespace

std::string quote(const Json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    return std::isnan(value.get<double>()) ? "NaN"
           : value.get<double>() > 0       ? "Infinity"
                                           : "-Infinity";
  std::string text = value.is_structured() && value.size() > 16
                         ? std::string(value.is_array() ? "[...]" : "{...}")
                         : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return printable(std::move(text));
}

Json parse_json(std::string_view text, const std::string& source) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw InvalidInput(source + ": is empty; a JSON document is expected");
  StrictBuilder builder(source);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes, Reads reads) {
  const FileReader file(path, reads);
  if (file.size() > max_bytes)
    throw IoError(fmt::format("{}: is {} bytes long; at most {} are read", path.string(),
                              file.size(), max_bytes));
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text.data(), file.size());
  return text;
}

Json read_json_file(const std::filesystem::path& path, int64_t max_bytes) {
  return parse_json(read_text_file(path, max_bytes), path.string());
}

std::string to_text(const Json& json, int indent) {
  if (has_plain_texts(json)) return json.dump(indent);
  return with_plain_texts(json).dump(indent);
}

void Problems::add(const std::string& path, const std::string& what) {
  lines_.push_back(fmt::format("{}: '{}' {}", source_, printable(path), one_line(what)));
}

void Problems::add(const std::string& what) { lines_.push_back(source_ + ": " + one_line(what)); }

void Problems::finish() const {
  if (!lines_.empty()) throw InvalidInput(lines_);
}

ObjectReader::ObjectReader(const Json& json, std::string path, Problems* problems)
    : json_(json.is_object() ? json : kNull), path_(std::move(path)), problems_(problems) {
  if (path_.empty()) ignore(std::string(kWrittenBy));  // any document of Piper's may say it
  if (!json.is_object()) {
    const std::string what = "is " + type_of(json) + "; allowed: an object";
    path_.empty() ? problems_->add("the document " + what) : problems_->add(path_, what);
  }
  constexpr size_t kFewKeys = 64;
  if (json_.is_object() && json_.size() > kFewKeys) {
    std::unordered_map<std::string_view, const Json*> index;
    for (const auto& [key, value] : json_.get_ref<const Json::object_t&>())
      index.emplace(key, &value);
    index_ =
        std::make_shared<const std::unordered_map<std::string_view, const Json*>>(std::move(index));
  }
}

const Json* ObjectReader::value_of(std::string_view key) const {
  if (index_ != nullptr) {
    const auto found = index_->find(key);
    return found == index_->end() ? nullptr : found->second;
  }
  if (!json_.is_object()) return nullptr;
  const auto& object = json_.get_ref<const Json::object_t&>();
  const auto found = std::ranges::find(
      object, key, [](const auto& entry) -> std::string_view { return entry.first; });
  return found == object.end() ? nullptr : &found->second;
}

std::string ObjectReader::path(const std::string& key) const {
  return path_.empty() ? key : path_ + "." + key;
}

bool ObjectReader::has(const std::string& key) const {
  const Json* value = value_of(key);
  return value != nullptr && !value->is_null();
}

const Json* ObjectReader::find(const std::string& key, bool required) {
  used_.insert(key);
  if (has(key)) return value_of(key);
  if (required && json_.is_object()) problem(key, "is missing");
  return nullptr;
}

namespace {

int64_t checked_integer(ObjectReader& reader, const std::string& key, const Json& value,
                        int64_t min, int64_t max) {
  const std::string allowed = fmt::format("; allowed: an integer from {} to {}", min, max);
  if (!value.is_number_integer()) {
    reader.problem(key, "is " + quote(value) + allowed);
    return min;
  }
  const auto number = value.get<int64_t>();
  if (number < min || number > max) {
    reader.problem(key, fmt::format("is {}{}", number, allowed));
    return min;
  }
  return number;
}

double checked_number(ObjectReader& reader, const std::string& key, const Json& value, double min,
                      double max) {
  const std::string allowed = fmt::format("; allowed: a number from {} to {}", min, max);
  if (!value.is_number()) {
    reader.problem(key, "is " + quote(value) + allowed);
    return min;
  }
  const auto number = value.get<double>();
  if (!(number >= min && number <= max)) {
    reader.problem(
        key,
        (std::isfinite(number) ? fmt::format("is {}", number) : "is " + quote(value)) + allowed);
    return min;
  }
  return number;
}

}  // namespace

int64_t ObjectReader::integer(const std::string& key, int64_t min, int64_t max) {
  const Json* value = find(key, true);
  return value ? checked_integer(*this, key, *value, min, max) : min;
}

int64_t ObjectReader::integer(const std::string& key, int64_t min, int64_t max, int64_t fallback) {
  const Json* value = find(key, false);
  return value ? checked_integer(*this, key, *value, min, max) : fallback;
}

double ObjectReader::number(const std::string& key, double min, double max) {
  const Json* value = find(key, true);
  return value ? checked_number(*this, key, *value, min, max) : min;
}

double ObjectReader::number(const std::string& key, double min, double max, double fallback) {
  const Json* value = find(key, false);
  return value ? checked_number(*this, key, *value, min, max) : fallback;
}

bool ObjectReader::boolean(const std::string& key, bool fallback) {
  const Json* value = find(key, false);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    problem(key, "is " + quote(*value) + "; allowed: true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string ObjectReader::text(const std::string& key) {
  const Json* value = find(key, true);
  if (value == nullptr) return "";
  if (value->is_string()) return value->get<std::string>();
  problem(key, "is " + quote(*value) + "; allowed: a string");
  return "";
}

std::string ObjectReader::text(const std::string& key, const std::string& fallback) {
  used_.insert(key);
  return has(key) ? text(key) : fallback;
}

std::string ObjectReader::choice(const std::string& key, const std::vector<std::string>& allowed) {
  const bool given = has(key);
  std::string value = text(key);
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return value;
  if (given && value_of(key)->is_string())
    problem(key, fmt::format("is '{}'; allowed: {}{}", printable(value), fmt::join(allowed, ", "),
                             did_you_mean(value, allowed)));
  return allowed.front();
}

std::string ObjectReader::choice(const std::string& key, const std::vector<std::string>& allowed,
                                 const std::string& fallback) {
  used_.insert(key);
  return has(key) ? choice(key, allowed) : fallback;
}

const Json& ObjectReader::raw(const std::string& key) {
  const Json* value = find(key, false);
  return value ? *value : kNull;
}

const Json* ObjectReader::object(const std::string& key) {
  const Json* value = find(key, false);
  if (value == nullptr || value->is_object()) return value;
  problem(key, "is " + quote(*value) + "; allowed: an object");
  return nullptr;
}

const Json* ObjectReader::array(const std::string& key) {
  const Json* value = find(key, false);
  if (value == nullptr || value->is_array()) return value;
  problem(key, "is " + quote(*value) + "; allowed: an array");
  return nullptr;
}

std::vector<int64_t> ObjectReader::integers(const std::string& key, int64_t min, int64_t max) {
  std::vector<int64_t> out;
  if (const Json* values = array(key))
    for (size_t i = 0; i < values->size(); ++i)
      out.push_back(checked_integer(*this, fmt::format("{}[{}]", key, i), (*values)[i], min, max));
  return out;
}

std::vector<double> ObjectReader::numbers(const std::string& key, double min, double max) {
  std::vector<double> out;
  if (const Json* values = array(key))
    for (size_t i = 0; i < values->size(); ++i)
      out.push_back(checked_number(*this, fmt::format("{}[{}]", key, i), (*values)[i], min, max));
  return out;
}

std::vector<std::string> ObjectReader::unread() const {
  std::vector<std::string> keys;
  if (json_.is_object())
    for (const auto& [key, value] : json_.get_ref<const Json::object_t&>())
      if (!used_.contains(key)) keys.push_back(key);
  return keys;
}

void ObjectReader::refuse_unknown() {
  const std::vector<std::string> known(used_.begin(), used_.end());
  for (const std::string& key : unread())
    problem(key, "is not a known key" + did_you_mean(key, known));
}

}  // namespace piper
