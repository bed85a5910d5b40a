#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/data/corpus.h>

#include <algorithm>
#include <iterator>
#include <mutex>

namespace piper::data {

struct Corpus::Fingerprint {
  std::once_flag once;
  std::string value;
};

Corpus::Corpus(Text text, const FingerprintRule& rule)
    : text_(std::move(text)),
      end_(text_.size()),
      source_(text_.source()),
      rule_(rule),
      fingerprint_(std::make_shared<Fingerprint>()) {}

Corpus::Corpus(std::vector<std::shared_ptr<const IndexedDataset>> datasets,
               const FingerprintRule& rule)
    : datasets_(std::move(datasets)), rule_(rule), fingerprint_(std::make_shared<Fingerprint>()) {
  for (const auto& dataset : datasets_) {
    end_ += dataset->num_tokens();
    source_ += (source_.empty() ? "" : ", ") + dataset->prefix();
  }
}

namespace {

constexpr const char* kSampled = "sampled-sha256:";

// Calls visit(begin, end) with the parts of [0, size) that are hashed, of numbers of `unit` bytes.
template <class Visit>
void for_each_hashed(int64_t size, int64_t unit, bool whole, const FingerprintRule& rule,
                     const Visit& visit) {
  const int64_t block = rule.block_bytes / unit;
  if (whole || size <= rule.num_blocks * block) return visit(int64_t{0}, size);
  for (int64_t i = 0; i < rule.num_blocks; ++i) {
    using Wide = __int128;  // the product may need more than 64 bits
    const Wide ahead = static_cast<Wide>(size - block) * i / (rule.num_blocks - 1);
    visit(static_cast<int64_t>(ahead), static_cast<int64_t>(ahead) + block);
  }
}

void hash_text(const Text& text, int64_t begin, int64_t end, files::Sha256& sha256) {
  std::vector<char> bytes(static_cast<size_t>(std::min<int64_t>(1 << 18, end - begin)));
  for (int64_t at = begin; at < end; at += std::ssize(bytes)) {
    const int64_t count = std::min(end - at, static_cast<int64_t>(bytes.size()));
    text.read(at, bytes.data(), count);
    sha256.update(bytes.data(), static_cast<size_t>(count));
  }
}

}  // namespace

int64_t Corpus::num_bytes() const {
  if (!is_indexed()) return size();
  int64_t bytes = 0, first = 0;
  for (const auto& dataset : datasets_) {
    const int64_t all = dataset->num_tokens();
    bytes +=
        (std::clamp<int64_t>(end_ - first, 0, all) - std::clamp<int64_t>(begin_ - first, 0, all)) *
        size_bytes(dataset->type());
    first += all;
  }
  return bytes;
}

std::string Corpus::hash(bool whole) const {
  files::Sha256 sha256;
  const auto update = [&](const std::string& text) { sha256.update(text.data(), text.size()); };
  if (!whole) update(fmt::format("{} bytes;", num_bytes()));
  if (!is_indexed()) {
    for_each_hashed(size(), 1, whole, rule_, [&](int64_t begin, int64_t end) {
      hash_text(text_, begin_ + begin, begin_ + end, sha256);
    });
    return sha256.finish();
  }
  int64_t first = 0;  // of a dataset's tokens within all
  for (const auto& dataset : datasets_) {
    const TokenRange range = {std::clamp<int64_t>(begin_ - first, 0, dataset->num_tokens()),
                              std::clamp<int64_t>(end_ - first, 0, dataset->num_tokens())};
    update(name(dataset->type()));
    for_each_hashed(range.end - range.begin, size_bytes(dataset->type()), whole, rule_,
                    [&](int64_t begin, int64_t end) {
                      dataset->hash({range.begin + begin, range.begin + end}, sha256);
                    });
    first += dataset->num_tokens();
  }
  return sha256.finish();
}

std::string Corpus::fingerprint() const {
  if (!fingerprint_) return files::sha256_hex("");
  std::call_once(fingerprint_->once, [&] {
    const bool whole = num_bytes() <= rule_.whole_bytes;
    fingerprint_->value = (whole ? "" : kSampled) + hash(whole);
  });
  return fingerprint_->value;
}

bool Corpus::has_fingerprint(const std::string& saved) const {
  if (saved == fingerprint()) return true;
  const bool is_sampled = num_bytes() > rule_.whole_bytes;
  return is_sampled && !saved.starts_with(kSampled) && saved == hash(true);
}

void Corpus::read(int64_t begin, std::span<int64_t> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  PIPER_CHECK(begin >= 0 && begin <= size() - count);
  int64_t at = begin_ + begin;
  if (!is_indexed()) {
    std::vector<unsigned char> bytes(tokens.size());
    text_.read(at, bytes.data(), count);
    std::ranges::copy(bytes, tokens.begin());
    return;
  }
  for (const auto& dataset : datasets_) {
    if (at >= dataset->num_tokens()) {
      at -= dataset->num_tokens();
      continue;
    }
    const auto here =
        std::min<size_t>(tokens.size(), static_cast<size_t>(dataset->num_tokens() - at));
    dataset->read(at, tokens.first(here));
    tokens = tokens.subspan(here);
    at = 0;
    if (tokens.empty()) return;
  }
}

Corpus Corpus::part(int64_t begin, int64_t end, const std::string& what) const {
  PIPER_CHECK(0 <= begin && begin < end && end <= size());
  Corpus part = *this;
  part.begin_ = begin_ + begin;
  part.end_ = begin_ + end;
  part.source_ += " (" + what + ")";
  part.fingerprint_ = std::make_shared<Fingerprint>();
  return part;
}

void Corpus::check_vocabulary(int64_t vocabulary,
                              const std::function<void(int64_t, int64_t)>& progress) const {
  if (!is_indexed()) {
    data::check_vocabulary(text_, vocabulary, progress);
    return;
  }
  int64_t all = 0, before = 0;
  for (const auto& dataset : datasets_) all += dataset->num_tokens();
  for (const auto& dataset : datasets_) {
    check_tokens(*dataset, vocabulary, [&](int64_t done, int64_t) {
      if (progress) progress(before + done, all);
    });
    before += dataset->num_tokens();
  }
}

Corpus read_corpus(const std::vector<std::filesystem::path>& paths, const FingerprintRule& rule) {
  PIPER_CHECK(!paths.empty());
  std::vector<std::shared_ptr<const IndexedDataset>> datasets;
  std::vector<std::filesystem::path> files;
  std::string source, indexed, plain;
  for (const std::filesystem::path& path : paths) {
    if (names_indexed_dataset(path)) {
      datasets.push_back(std::make_shared<const IndexedDataset>(path));
      indexed = path.string();
    } else {
      std::ranges::move(text_files(path), std::back_inserter(files));
      source += (source.empty() ? "" : ", ") + path.string();
      plain = path.string();
    }
  }
  if (!indexed.empty() && !plain.empty())
    throw InvalidInput(fmt::format(
        "{} is an indexed dataset and {} is byte text; allowed: one kind a run", indexed, plain));
  if (!indexed.empty()) return Corpus(std::move(datasets), rule);
  return Corpus(Text(files, source), rule);
}

CorpusSplit split_corpus(const Corpus& corpus, double validation_fraction) {
  const auto length =
      static_cast<int64_t>(static_cast<double>(corpus.size()) * validation_fraction);
  if (!(validation_fraction > 0 && validation_fraction < 1) || length < 1 ||
      length >= corpus.size())
    throw InvalidInput(fmt::format(
        "{}: the validation fraction {} leaves {} of {} tokens; allowed: above 0, below 1, and a "
        "token for either part",
        corpus.source(), validation_fraction, length, corpus.size()));
  const int64_t cut = corpus.size() - length;
  return {corpus.part(0, cut, "training part"), corpus.part(cut, corpus.size(), "validation part")};
}

void check_window(const Corpus& corpus, int64_t sequence) {
  PIPER_CHECK(sequence >= 1);
  if (corpus.size() < sequence + 1)
    throw InvalidInput(fmt::format(
        "{}: holds {} {}; a sequence of {} tokens and its last target need {}", corpus.source(),
        corpus.size(), corpus.is_indexed() ? "tokens" : "bytes", sequence, sequence + 1));
}

}  // namespace piper::data
