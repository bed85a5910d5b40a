#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/data/indexed_dataset.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace piper::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 9> kMagic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr int64_t kVersionAt = 9, kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26,
                  kHeaderBytes = 34;
constexpr int64_t kEntriesAtOnce = 1 << 15;
constexpr int64_t kTokensAtOnce = 1 << 16;

template <class Number>
Number number_at(const char* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

// Calls visit(i, entry i) for `count` numbers from `offset` of the file, a block at a time.
template <class Number, class Visit>
void for_each_entry(const FileReader& file, int64_t offset, int64_t count, Visit visit) {
  std::vector<Number> block(static_cast<size_t>(std::min(count, kEntriesAtOnce)));
  for (int64_t first = 0; first < count; first += kEntriesAtOnce) {
    const int64_t n = std::min(kEntriesAtOnce, count - first);
    file.read(offset + first * static_cast<int64_t>(sizeof(Number)), block.data(),
              n * static_cast<int64_t>(sizeof(Number)));
    for (int64_t i = 0; i < n; ++i) visit(first + i, block[static_cast<size_t>(i)]);
  }
}

fs::path with_suffix(const fs::path& prefix, const char* suffix) {
  fs::path path = prefix;
  path += suffix;
  return path;
}

}  // namespace

fs::path index_path(const fs::path& prefix) { return with_suffix(prefix, ".idx"); }
fs::path tokens_path(const fs::path& prefix) { return with_suffix(prefix, ".bin"); }

bool names_indexed_dataset(const fs::path& path) {
  std::error_code ignored;
  const bool has_index = fs::exists(index_path(path), ignored);
  const bool has_tokens = fs::exists(tokens_path(path), ignored);
  if (has_index && has_tokens) return true;
  if ((has_index || has_tokens) && !fs::exists(path, ignored))
    throw InvalidInput(fmt::format("{}: is missing beside {}; an indexed dataset is both",
                                   (has_index ? tokens_path(path) : index_path(path)).string(),
                                   (has_index ? index_path(path) : tokens_path(path)).string()));
  fs::path prefix = path;
  prefix.replace_extension();
  const std::string extension = path.extension().string();
  if ((extension == ".idx" && fs::exists(tokens_path(prefix), ignored)) ||
      (extension == ".bin" && fs::exists(index_path(prefix), ignored)))
    throw InvalidInput(fmt::format("{}: is one of the two files of an indexed dataset; give {}",
                                   path.string(), prefix.string()));
  return false;
}

IndexedDataset::IndexedDataset(const fs::path& prefix)
    : prefix_(prefix.string()), index_(index_path(prefix)), tokens_(tokens_path(prefix)) {
  read_header();
  check_sequences();
  check_documents();
  num_tokens_ = tokens_.size() / size_bytes(type_);
}

void IndexedDataset::refuse(int64_t byte, const std::string& what) const {
  throw InvalidInput(fmt::format("{}: byte {}: {}", index_.path().string(), byte, what));
}

void IndexedDataset::read_header() {
  if (index_.size() < kHeaderBytes)
    refuse(index_.size(), fmt::format("the file ends; the header alone takes {}", kHeaderBytes));
  std::array<char, kHeaderBytes> header;
  index_.read(0, header.data(), kHeaderBytes);
  if (!std::equal(kMagic.begin(), kMagic.end(), header.begin()))
    refuse(0, "does not start as an index does; allowed: MMIDIDX and two zero bytes");
  if (const auto version = number_at<uint64_t>(&header[kVersionAt]); version != 1)
    refuse(kVersionAt, fmt::format("the version is {}; allowed: 1", version));
  const auto code = number_at<uint8_t>(&header[kTypeAt]);
  const auto type = token_type_of(code);
  if (!type)
    refuse(kTypeAt, fmt::format("the token type is {}{}; allowed: 1 (uint8), 2 (int8), 3 (int16), "
                                "4 (int32), 5 (int64), 8 (uint16)",
                                code, code == 6 || code == 7 ? " (floating point)" : ""));
  type_ = *type;

  // Counts that pass these bounds cannot overflow below.
  const auto sequences = number_at<uint64_t>(&header[kSequencesAt]);
  const auto documents = number_at<uint64_t>(&header[kDocumentsAt]);
  const auto room = static_cast<uint64_t>(index_.size() - kHeaderBytes);
  if (sequences > room / 12)
    refuse(kSequencesAt,
           fmt::format("{} sequences do not fit a file of {} bytes; allowed: at most {}", sequences,
                       index_.size(), room / 12));
  if (documents < 1 || documents > room / 8)
    refuse(kDocumentsAt, fmt::format("{} document indices; allowed: 1 to {} in a file of {} bytes",
                                     documents, room / 8, index_.size()));
  num_sequences_ = static_cast<int64_t>(sequences);
  num_documents_ = static_cast<int64_t>(documents) - 1;
  if (num_documents_ == 0 && num_sequences_ > 0)
    refuse(kDocumentsAt, fmt::format("no document holds the {} sequences; allowed: at least one",
                                     num_sequences_));
  const int64_t expected = documents_begin() + (num_documents_ + 1) * 8;
  if (index_.size() < expected)
    refuse(index_.size(), fmt::format("the file ends; {} sequences and {} documents take {} bytes",
                                      sequences, num_documents_, expected));
  if (index_.size() == expected + num_sequences_ && num_sequences_ > 0)
    refuse(expected, "modes of multimodal sequences follow; allowed: text only");
  if (index_.size() > expected)
    refuse(expected,
           fmt::format("the file goes on to byte {}; {} sequences and {} documents end here",
                       index_.size(), sequences, num_documents_));
}

void IndexedDataset::check_sequences() const {
  const int64_t token_bytes = size_bytes(type_);
  const std::string tokens_file = tokens_.path().string();
  std::vector<int32_t> lengths(static_cast<size_t>(std::min(num_sequences_, kEntriesAtOnce)));
  int64_t next = 0;  // byte of .bin where the sequence starts
  for_each_entry<int64_t>(
      index_, pointers_begin(), num_sequences_, [&](int64_t i, int64_t pointer) {
        const int64_t in_block = i % kEntriesAtOnce;
        if (in_block == 0)
          index_.read(lengths_begin() + i * 4, lengths.data(),
                      std::min(kEntriesAtOnce, num_sequences_ - i) * 4);
        const int32_t length = lengths[static_cast<size_t>(in_block)];
        if (length < 0)
          refuse(lengths_begin() + i * 4,
                 fmt::format("sequence {} has {} tokens; allowed: 0 to 2147483647", i, length));
        if (pointer != next)
          refuse(
              pointers_begin() + i * 8,
              fmt::format(
                  "sequence {} starts at byte {} of {}; allowed: {}, where the one before it ends",
                  i, pointer, tokens_file, next));
        if (length > (tokens_.size() - next) / token_bytes)
          refuse(lengths_begin() + i * 4,
                 fmt::format(
                     "sequence {} has {} tokens of {} bytes from byte {} on, but {} has {} bytes",
                     i, length, token_bytes, next, tokens_file, tokens_.size()));
        next += length * token_bytes;
      });
  if (next != tokens_.size())
    throw InvalidInput(
        fmt::format("{}: has {} bytes; allowed: {}, which the {} sequences of {} take", tokens_file,
                    tokens_.size(), next, num_sequences_, index_.path().string()));
}

void IndexedDataset::check_documents() const {
  int64_t before = 0;
  for_each_entry<int64_t>(
      index_, documents_begin(), num_documents_ + 1, [&](int64_t i, int64_t sequence) {
        const int64_t lowest = i == num_documents_ ? num_sequences_ : before;
        const int64_t highest = i == 0 ? 0 : num_sequences_;
        if (sequence < lowest || sequence > highest)
          refuse(documents_begin() + i * 8,
                 fmt::format("document index {} is {}; allowed: {}", i, sequence,
                             lowest == highest ? fmt::format("{}", lowest)
                                               : fmt::format("{} to {}", lowest, highest)));
        before = sequence;
      });
}

TokenRange IndexedDataset::document(int64_t document) const {
  PIPER_CHECK(document >= 0 && document < num_documents_);
  std::array<int64_t, 2> sequences;
  index_.read(documents_begin() + document * 8, sequences.data(), sizeof sequences);
  const auto start_of = [&](int64_t sequence) {
    if (sequence == num_sequences_) return num_tokens_;
    int64_t pointer = 0;
    index_.read(pointers_begin() + sequence * 8, &pointer, sizeof pointer);
    return pointer / size_bytes(type_);
  };
  return {start_of(sequences[0]), start_of(sequences[1])};
}

void IndexedDataset::read(int64_t begin, std::span<int64_t> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  PIPER_CHECK(begin >= 0 && begin <= num_tokens_ - count);
  std::vector<char> bytes(static_cast<size_t>(std::min(count, kTokensAtOnce) * size_bytes(type_)));
  for (int64_t first = 0; first < count; first += kTokensAtOnce) {
    const int64_t n = std::min(kTokensAtOnce, count - first);
    tokens_.read((begin + first) * size_bytes(type_), bytes.data(), n * size_bytes(type_));
    decode(type_, bytes.data(), tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(n)));
  }
}

void IndexedDataset::hash(TokenRange range, files::Sha256& sha256) const {
  PIPER_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= num_tokens_);
  std::vector<char> bytes(1 << 18);
  const int64_t end = range.end * size_bytes(type_);
  for (int64_t at = range.begin * size_bytes(type_); at < end;) {
    const int64_t n = std::min(end - at, static_cast<int64_t>(bytes.size()));
    tokens_.read(at, bytes.data(), n);
    sha256.update(bytes.data(), static_cast<size_t>(n));
    at += n;
  }
}

int64_t check_tokens(const IndexedDataset& dataset, int64_t vocabulary,
                     const std::function<void(int64_t, int64_t)>& progress) {
  const int64_t last = vocabulary == 0 ? largest(dataset.type()) : vocabulary - 1;
  std::vector<int64_t> tokens(static_cast<size_t>(std::min(kTokensAtOnce, dataset.num_tokens())));
  int64_t largest_seen = -1;
  for (int64_t first = 0; first < dataset.num_tokens(); first += kTokensAtOnce) {
    tokens.resize(static_cast<size_t>(std::min(kTokensAtOnce, dataset.num_tokens() - first)));
    dataset.read(first, tokens);
    const auto [low, high] = std::ranges::minmax(tokens);
    if (low < 0 || high > last) {
      const auto bad =
          std::ranges::find_if(tokens, [&](int64_t token) { return token < 0 || token > last; });
      const int64_t position = first + (bad - tokens.begin());
      throw InvalidInput(fmt::format(
          "{}: byte {}: token {} at position {}; allowed: 0 to {}{}",
          tokens_path(dataset.prefix()).string(), position * size_bytes(dataset.type()), *bad,
          position, last,
          vocabulary == 0 ? std::string() : fmt::format(" (a vocabulary of {})", vocabulary)));
    }
    largest_seen = std::max(largest_seen, high);
    if (progress) progress(first + static_cast<int64_t>(tokens.size()), dataset.num_tokens());
  }
  return largest_seen;
}

}  // namespace piper::data
