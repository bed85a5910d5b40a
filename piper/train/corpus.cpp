#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/train/corpus.h>

#include <algorithm>
#include <mutex>

namespace piper::train {

struct Corpus::Fingerprint {
  std::once_flag once;
  std::string value;
};

Corpus::Corpus(Text text)
    : text_(std::move(text)),
      end_(text_.size()),
      source_(text_.source()),
      fingerprint_(std::make_shared<Fingerprint>()) {}

Corpus::Corpus(std::vector<std::shared_ptr<const IndexedDataset>> datasets)
    : datasets_(std::move(datasets)), fingerprint_(std::make_shared<Fingerprint>()) {
  for (const auto& dataset : datasets_) {
    end_ += dataset->num_tokens();
    source_ += (source_.empty() ? "" : ", ") + dataset->prefix();
  }
}

std::string Corpus::fingerprint() const {
  if (!fingerprint_) return sha256_hex("");
  std::call_once(fingerprint_->once, [&] {
    if (!is_indexed()) {
      fingerprint_->value = sha256_hex(
          text_.bytes().substr(static_cast<size_t>(begin_), static_cast<size_t>(size())));
      return;
    }
    Sha256 sha256;
    int64_t first = 0;  // of a dataset's tokens within all
    for (const auto& dataset : datasets_) {
      const TokenRange range = {std::clamp<int64_t>(begin_ - first, 0, dataset->num_tokens()),
                                std::clamp<int64_t>(end_ - first, 0, dataset->num_tokens())};
      sha256.update(name(dataset->type()), std::char_traits<char>::length(name(dataset->type())));
      dataset->hash(range, sha256);
      first += dataset->num_tokens();
    }
    fingerprint_->value = sha256.finish();
  });
  return fingerprint_->value;
}

void Corpus::read(int64_t begin, std::span<int64_t> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  PIPER_CHECK(begin >= 0 && begin <= size() - count);
  int64_t at = begin_ + begin;
  if (!is_indexed()) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text_.bytes().data()) + at;
    std::copy_n(bytes, count, tokens.begin());
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
    train::check_vocabulary(text_, vocabulary);
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

Corpus read_corpus(const std::vector<std::filesystem::path>& paths) {
  PIPER_CHECK(!paths.empty());
  std::vector<std::shared_ptr<const IndexedDataset>> datasets;
  std::string bytes, source, indexed, plain;
  for (const std::filesystem::path& path : paths) {
    if (names_indexed_dataset(path)) {
      datasets.push_back(std::make_shared<const IndexedDataset>(path));
      indexed = path.string();
    } else {
      const Text text = read_text(path);
      if (paths.size() == 1) return text;
      bytes += text.bytes();
      source += (source.empty() ? "" : ", ") + text.source();
      plain = path.string();
    }
  }
  if (!indexed.empty() && !plain.empty())
    throw InvalidInput(fmt::format(
        "{} is an indexed dataset and {} is byte text; allowed: one kind a run", indexed, plain));
  if (!indexed.empty()) return Corpus(std::move(datasets));
  return Text(std::move(bytes), source);
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

}  // namespace piper::train
