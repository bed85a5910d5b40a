#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/cli/load_corpus.h>
#include <piper/report/progress.h>

#include <filesystem>
#include <optional>

namespace piper::cli {
namespace {

constexpr int64_t kQuick = 1 << 26;  // tokens that are checked in less than a second

}  // namespace

data::Corpus load_corpus(const std::vector<std::string>& paths, int64_t vocabulary) {
  const data::Corpus corpus = paths.empty() ? data::Corpus(data::read_own_text(PIPER_SOURCE_FOLDER))
                                            : data::read_corpus({paths.begin(), paths.end()});
  std::optional<report::Progress> bar;
  if (corpus.size() > kQuick && (corpus.is_indexed() || vocabulary < 256))
    bar.emplace(
        report::ProgressOptions{.label = "check tokens", .total = corpus.size(), .unit = "tokens"});
  corpus.check_vocabulary(vocabulary, [&](int64_t done, int64_t) {
    if (bar) bar->set(done);
  });
  return corpus;
}

std::string describe(const data::Corpus& corpus) {
  const auto size = static_cast<double>(corpus.size());
  return fmt::format("{} ({})", corpus.source(),
                     corpus.is_indexed() ? format_count(size) + " tokens" : format_bytes(size));
}

}  // namespace piper::cli
