#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/data/indexed_dataset.h>
#include <piper/data/indexed_dataset_writer.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace piper::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBufferBytes = 1 << 20;

fs::path temporary(const fs::path& path) {
  fs::path result = path;
  result += fmt::format(".tmp-{}", ::getpid());
  return result;
}

void move(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw IoError(fmt::format("{}: cannot be put in place: {}", to.string(), std::strerror(errno)));
}

// Appends numbers to a file, a block at a time.
template <class Number>
class NumberWriter {
 public:
  explicit NumberWriter(files::FileWriter& file) : file_(file) { block_.reserve(kBufferBytes / 8); }
  void put(Number number) {
    block_.push_back(number);
    if (block_.size() == kBufferBytes / 8) flush();
  }
  void flush() {
    file_.write(block_.data(), static_cast<int64_t>(block_.size() * sizeof(Number)));
    block_.clear();
  }

 private:
  files::FileWriter& file_;
  std::vector<Number> block_;
};

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(fs::path prefix, TokenType type,
                                           int64_t max_sequence_tokens)
    : prefix_(std::move(prefix)),
      temporary_tokens_(temporary(tokens_path(prefix_))),
      temporary_index_(temporary(index_path(prefix_))),
      type_(type),
      max_sequence_tokens_(max_sequence_tokens),
      tokens_(temporary_tokens_) {
  PIPER_CHECK(max_sequence_tokens >= 1 &&
              max_sequence_tokens <= std::numeric_limits<int32_t>::max());
  buffer_.reserve(kBufferBytes);
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (finished_) return;
  std::error_code ignored;
  fs::remove(temporary_tokens_, ignored);
  fs::remove(temporary_index_, ignored);
}

void IndexedDatasetWriter::append(std::span<const int64_t> tokens) {
  PIPER_CHECK(!finished_);
  for (const int64_t token : tokens)
    if (token < 0 || token > largest(type_))
      throw InvalidInput(fmt::format("token {} at position {}; allowed: 0 to {} ({})", token,
                                     num_tokens_ + (&token - tokens.data()), largest(type_),
                                     name(type_)));
  const auto token_bytes = static_cast<size_t>(size_bytes(type_));
  while (!tokens.empty()) {
    if (in_sequence_ == max_sequence_tokens_) end_sequence();
    if (buffer_.size() + token_bytes > kBufferBytes) flush();
    const size_t count = std::min({tokens.size(), (kBufferBytes - buffer_.size()) / token_bytes,
                                   static_cast<size_t>(max_sequence_tokens_ - in_sequence_)});
    const size_t filled = buffer_.size();
    buffer_.resize(filled + count * token_bytes);
    encode(type_, tokens.first(count), buffer_.data() + filled);
    tokens = tokens.subspan(count);
    in_sequence_ += static_cast<int64_t>(count);
    num_tokens_ += static_cast<int64_t>(count);
  }
}

void IndexedDatasetWriter::end_sequence() {
  lengths_.push_back(static_cast<int32_t>(in_sequence_));
  in_sequence_ = 0;
}

void IndexedDatasetWriter::end_document() {
  PIPER_CHECK(!finished_);
  end_sequence();
  documents_.push_back(static_cast<int64_t>(lengths_.size()));
}

void IndexedDatasetWriter::flush() {
  tokens_.write(buffer_.data(), static_cast<int64_t>(buffer_.size()));
  buffer_.clear();
}

void IndexedDatasetWriter::write_index(const fs::path& path) const {
  files::FileWriter index(path);
  index.write(std::string_view("MMIDIDX\0\0", 9));
  const uint64_t version = 1, num_sequences = lengths_.size(), num_indices = documents_.size();
  index.write(&version, 8);
  index.write(&type_, 1);
  index.write(&num_sequences, 8);
  index.write(&num_indices, 8);
  index.write(lengths_.data(), static_cast<int64_t>(lengths_.size() * 4));
  NumberWriter<int64_t> pointers(index);
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    pointers.put(pointer);
    pointer += length * size_bytes(type_);
  }
  pointers.flush();
  index.write(documents_.data(), static_cast<int64_t>(documents_.size() * 8));
  index.finish();
}

void IndexedDatasetWriter::finish() {
  if (in_sequence_ > 0) end_document();
  flush();
  tokens_.finish();
  write_index(temporary_index_);
  std::error_code error;
  fs::remove(index_path(prefix_), error);
  if (error)
    throw IoError(index_path(prefix_).string() + ": cannot be replaced: " + error.message());
  const fs::path folder = prefix_.parent_path().empty() ? "." : prefix_.parent_path();
  files::sync_folder(folder);
  move(temporary_tokens_, tokens_path(prefix_));
  move(temporary_index_, index_path(prefix_));
  finished_ = true;
  files::sync_folder(folder);
}

}  // namespace piper::data
