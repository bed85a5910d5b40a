// The one strict way in for JSON from outside (configs, clusters, strategies, checkpoint
// manifests).
//
// nlohmann/json does the lexing. On top of it: duplicate keys, numbers out of range, depth beyond
// 64 and trailing text are errors; integers stay integers (-1 never becomes 2^64-1, 3.7 never
// becomes 3). ObjectReader then checks keys and types and collects *all* problems of a document,
// each one line:
//   model.json: 'num_experts' is -1; allowed: an integer from 1 to 1000000
#pragma once

#include <piper/base/file_reader.h>
#include <piper/base/json_fwd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace piper {

// Parses `text`; `source` (a file name) goes into messages. Throws InvalidInput
// naming the key or the byte. Linear in the size of the text.
Json parse_json(std::string_view text, const std::string& source);

// Reads and parses a file of at most `max_bytes`. Throws IoError (absent, unreadable),
// InvalidInput.
Json read_json_file(const std::filesystem::path& path, int64_t max_bytes = 64 << 20);

// Text of a whole file. Throws IoError naming path and cause.
std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes = int64_t{1} << 32,
                           Reads reads = Reads::kInput);

// The document as text, on one line or indented. A text that is no UTF-8 (a file's name may be any
// bytes) is written in a form that parse_json() turns back into those bytes: "bytes:run%FF".
std::string to_text(const Json& json, int indent = -1);

// The root's key by which a document says that Piper wrote it; readers pass it over.
inline constexpr std::string_view kWrittenBy = "written_by";

// Collects the problems of one document; finish() throws them together. Each is one line: control
// characters become '?', and what is longer than 1000 bytes is cut.
class Problems {
 public:
  explicit Problems(std::string source) : source_(std::move(source)) {}

  // "<source>: '<path>' <what>"
  void add(const std::string& path, const std::string& what);
  // A problem of the document, not of one key.
  void add(const std::string& what);
  bool empty() const { return lines_.empty(); }
  const std::string& source() const { return source_; }
  // Throws InvalidInput with all lines when there are any.
  void finish() const;

 private:
  std::string source_;
  std::vector<std::string> lines_;
};

// A view of one JSON object that notes every key read. All getters report into Problems and return
// the fallback (or a harmless value) on error, so that reading goes on and finds the other
// problems.
class ObjectReader {
 public:
  // `path` is "" at the root, else the JSON path of this object ("levels[2]"). A non-object is a
  // problem.
  ObjectReader(const Json& json, std::string path, Problems* problems);

  bool has(const std::string& key) const;  // present and not null
  // The value, null too; nullptr when absent. In time that the size of the object does not change.
  const Json* value_of(std::string_view key) const;
  // Marks a key as understood without reading it.
  void ignore(const std::string& key) { used_.insert(key); }
  // The path of a key, for messages.
  std::string path(const std::string& key) const;
  void problem(const std::string& key, const std::string& what) { problems_->add(path(key), what); }
  Problems* problems() { return problems_; }

  // A required getter (no fallback) makes absence or null a problem.
  int64_t integer(const std::string& key, int64_t min, int64_t max);
  int64_t integer(const std::string& key, int64_t min, int64_t max, int64_t fallback);
  double number(const std::string& key, double min, double max);
  double number(const std::string& key, double min, double max, double fallback);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key);
  std::string text(const std::string& key, const std::string& fallback);
  // One of `allowed`; another value is a problem with a suggestion.
  std::string choice(const std::string& key, const std::vector<std::string>& allowed);
  std::string choice(const std::string& key, const std::vector<std::string>& allowed,
                     const std::string& fallback);
  // The raw value (null Json when absent); the caller checks it.
  const Json& raw(const std::string& key);
  // A nested object / array; nullptr when absent or null; another type is a problem (and nullptr).
  const Json* object(const std::string& key);
  const Json* array(const std::string& key);
  std::vector<int64_t> integers(const std::string& key, int64_t min, int64_t max);
  std::vector<double> numbers(const std::string& key, double min, double max);

  // Keys of the object that nothing has read, in document order.
  std::vector<std::string> unread() const;
  // Every unread key becomes a problem, with a suggestion among the keys asked for.
  void refuse_unknown();

 private:
  const Json* find(const std::string& key, bool required);

  const Json& json_;
  // Finds the keys of an object that has many, since a look-up in an ordered_json is linear; it is
  // null for others.
  std::shared_ptr<const std::unordered_map<std::string_view, const Json*>> index_;
  std::string path_;
  Problems* problems_;
  std::set<std::string> used_;
};

// How a value is quoted in a message: JSON without control characters, cut at 60 bytes.
std::string quote(const Json& value);

}  // namespace piper
