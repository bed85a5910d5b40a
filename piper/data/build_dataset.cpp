#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/file_reader.h>
#include <piper/base/json.h>
#include <piper/data/build_dataset.h>
#include <piper/data/indexed_dataset.h>
#include <piper/data/indexed_dataset_writer.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string_view>

namespace piper::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockBytes = 1 << 20;
constexpr const char* kDefaultKey = "text";

class Builder {
 public:
  explicit Builder(const DatasetRequest& request) : request_(request) {}

  DatasetSummary build();

 private:
  enum class Kind { kBytes, kTokens };

  void add_text(const FileReader& file);
  void add_lines(const FileReader& file, const std::string& key);
  void add_line(std::string_view line, const std::string& where, const std::string& key);
  // The dataset's kind is that of its first document; `where` names the one that differs.
  void expect(Kind kind, const std::string& where);
  void append_bytes(std::string_view bytes);
  void append_array(const Json& array, const std::string& where, const std::string& key);
  void end_document(bool empty);
  void note_progress(int64_t bytes_of_file) const {
    if (request_.progress) request_.progress(summary_.input_bytes + bytes_of_file);
  }

  const DatasetRequest& request_;
  DatasetSummary summary_;
  std::optional<Kind> kind_;
  std::unique_ptr<IndexedDatasetWriter> writer_;
  std::vector<int64_t> tokens_;
};

void Builder::expect(Kind kind, const std::string& where) {
  if (kind_ == kind) return;
  const auto words = [](Kind k) { return k == Kind::kBytes ? "text" : "an array of integers"; };
  if (kind_)
    throw InvalidInput(fmt::format("{}: holds {}; allowed: {}, as in what came before", where,
                                   words(kind), words(*kind_)));
  if (kind == Kind::kTokens && request_.append_end_of_document)
    throw InvalidInput(
        where +
        ": holds an array of integers; its end-of-document token must be among them, none "
        "is appended");
  if (kind == Kind::kBytes && request_.vocabulary != 0)
    throw InvalidInput(fmt::format(
        "{}: holds text, whose vocabulary is {}; a vocabulary is given for arrays of integers only",
        where, request_.append_end_of_document ? 257 : 256));
  kind_ = kind;
  summary_.vocabulary =
      kind == Kind::kTokens ? request_.vocabulary : (request_.append_end_of_document ? 257 : 256);
  summary_.type =
      summary_.vocabulary == 0 ? TokenType::kInt32 : type_for_vocabulary(summary_.vocabulary);
  writer_ = std::make_unique<IndexedDatasetWriter>(request_.prefix, summary_.type);
}

void Builder::append_bytes(std::string_view bytes) {
  const auto* first = reinterpret_cast<const unsigned char*>(bytes.data());
  for (size_t at = 0; at < bytes.size(); at += kBlockBytes) {
    tokens_.assign(first + at,
                   first + std::min(bytes.size(), at + static_cast<size_t>(kBlockBytes)));
    writer_->append(tokens_);
  }
}

void Builder::end_document(bool empty) {
  if (empty) {
    ++summary_.empty_documents;
    return;
  }
  if (request_.append_end_of_document) writer_->append(std::vector<int64_t>{kEndOfDocument});
  writer_->end_document();
}

void Builder::add_text(const FileReader& file) {
  expect(Kind::kBytes, file.path().string());
  std::string block;
  for (int64_t at = 0; at < file.size(); at += kBlockBytes) {
    block.resize(static_cast<size_t>(std::min(kBlockBytes, file.size() - at)));
    file.read(at, block.data(), static_cast<int64_t>(block.size()));
    append_bytes(block);
    note_progress(at + static_cast<int64_t>(block.size()));
  }
  end_document(file.size() == 0);
}

void Builder::append_array(const Json& array, const std::string& where, const std::string& key) {
  const int64_t last =
      request_.vocabulary == 0 ? std::numeric_limits<int32_t>::max() : request_.vocabulary - 1;
  tokens_.clear();
  for (const Json& entry : array) {
    if (!entry.is_number_integer() || entry.get<int64_t>() < 0 || entry.get<int64_t>() > last)
      throw InvalidInput(fmt::format("{}: '{}[{}]' is {}; allowed: an integer from 0 to {}", where,
                                     key, tokens_.size(), quote(entry), last));
    tokens_.push_back(entry.get<int64_t>());
  }
  writer_->append(tokens_);
}

void Builder::add_line(std::string_view line, const std::string& where, const std::string& key) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;  // such as after the last
  const Json json = parse_json(line, where);
  if (!json.is_object())
    throw InvalidInput(fmt::format("{}: is {}; allowed: an object", where, quote(json)));
  if (!json.contains(key))
    throw InvalidInput(
        fmt::format("{}: '{}' is missing; allowed: a text or an array of integers", where, key));
  const Json& value = json.at(key);
  if (value.is_string()) {
    expect(Kind::kBytes, where);
    append_bytes(value.get_ref<const std::string&>());
  } else if (value.is_array()) {
    expect(Kind::kTokens, where);
    append_array(value, where, key);
  } else {
    throw InvalidInput(fmt::format("{}: '{}' is {}; allowed: a text or an array of integers", where,
                                   key, quote(value)));
  }
  end_document(value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty());
}

void Builder::add_lines(const FileReader& file, const std::string& key) {
  std::string block, line;
  int64_t number = 1;
  const auto where = [&] { return fmt::format("{}:{}", file.path().string(), number); };
  for (int64_t at = 0; at < file.size(); at += kBlockBytes) {
    block.resize(static_cast<size_t>(std::min(kBlockBytes, file.size() - at)));
    file.read(at, block.data(), static_cast<int64_t>(block.size()));
    std::string_view rest = block;
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      line += rest.substr(0, end);
      add_line(line, where(), key);
      line.clear();
      rest.remove_prefix(end + 1);
      ++number;
    }
    line += rest;
    if (static_cast<int64_t>(line.size()) > kMaxLineBytes)
      throw InvalidInput(
          fmt::format("{}: the line is longer than {} bytes", where(), kMaxLineBytes));
    note_progress(at + static_cast<int64_t>(block.size()));
  }
  add_line(line, where(), key);
}

DatasetSummary Builder::build() {
  std::error_code ignored;
  for (const fs::path& path : {index_path(request_.prefix), tokens_path(request_.prefix)})
    if (!request_.overwrite && fs::exists(path, ignored))
      throw InvalidInput(path.string() + ": is there already; name another, or allow to overwrite");
  for (const fs::path& input : request_.inputs) {
    const FileReader file(input);
    const bool lines = request_.jsonl_key.has_value() || input.extension() == ".jsonl";
    lines ? add_lines(file, request_.jsonl_key.value_or(kDefaultKey)) : add_text(file);
    summary_.input_bytes += file.size();
  }
  if (!writer_ || writer_->num_tokens() == 0)
    throw InvalidInput(fmt::format("{}{}: {} no token; nothing is written",
                                   request_.inputs.empty() ? "" : request_.inputs.front().string(),
                                   request_.inputs.size() > 1 ? ", ..." : "",
                                   request_.inputs.size() > 1 ? "hold" : "holds"));
  summary_.documents = writer_->num_documents();
  summary_.tokens = writer_->num_tokens();
  writer_->finish();
  return summary_;
}

}  // namespace

DatasetSummary build_dataset(const DatasetRequest& request) { return Builder(request).build(); }

}  // namespace piper::data
