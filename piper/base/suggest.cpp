#include <piper/base/suggest.h>

#include <algorithm>
#include <vector>

namespace piper {
namespace {

// Levenshtein distance, one row at a time; `limit` where it is no less.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
  const size_t longer = std::max(a.size(), b.size()) - std::min(a.size(), b.size());
  if (longer >= limit) return limit;
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0], least = i;
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      least = std::min(least, row[j]);
    }
    if (least >= limit) return limit;  // no later row has less
  }
  return row.back();
}

// Letters and digits that say which name is meant: "h100" in "dgx-h100". Fewer than three stand in
// too many names.
bool names_part_of(std::string_view word, std::string_view candidate) {
  const size_t start = std::min(word.find_first_not_of('-'), word.size());
  return word.size() - start >= 3 && candidate.find(word) != std::string_view::npos;
}

// The candidate that the word is a part of with the fewest letters more.
std::string containing(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  for (const std::string& candidate : candidates)
    if (names_part_of(word, candidate) && (best.empty() || candidate.size() < best.size()))
      best = candidate;
  return best;
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  word = word.substr(0, 100);
  if (word.find_first_not_of('-') == std::string_view::npos) return "";  // names nothing
  std::string best = containing(word, candidates);
  if (!best.empty()) return best;
  // Fewer changes than the word has letters, and no more than a third of it (at least 2).
  size_t best_distance = std::min(word.size(), std::max<size_t>(2, word.size() / 3) + 1);
  for (const std::string& candidate : candidates) {
    if (candidate.size() > 2 * word.size() + 2) continue;
    const size_t distance = edit_distance(word, candidate, best_distance);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const std::string best = nearest(word, candidates);
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

}  // namespace piper
