#include <fmt/format.h>
#include <piper/base/printable.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace piper {
namespace {

constexpr size_t kMaxShown = 60;
constexpr size_t kMaxLine = 1000;

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
  bool is_utf8 = true;
};

// The character at text[at]. A byte that begins none is a character of its own: a sequence that is
// cut off or longer than its code needs (the Unicode standard, table 3-7), a surrogate.
Character character(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {.code = lead};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  static constexpr std::array<uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const Character broken{.code = lead, .is_utf8 = false};
  if (lead < 0xC2 || lead > 0xF4 || at + length > text.size()) return broken;
  uint32_t code = lead & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[at + i]);
    if ((next & 0xC0U) != 0x80) return broken;
    code = code << 6U | (next & 0x3FU);
  }
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kLeast[length] || code > 0x10FFFF || is_surrogate) return broken;
  return {.code = code, .bytes = length};
}

struct CodeRange {
  uint32_t first, last;
};

// Controls of ASCII and of ISO 6429 (C1); Unicode's Bidi_Control, separators of lines and
// paragraphs, and deprecated format characters; tags, which nothing shows.
constexpr std::array<CodeRange, 9> kSteering{{{0x00, 0x1F},
                                              {0x7F, 0x9F},
                                              {0x061C, 0x061C},
                                              {0x200E, 0x200F},
                                              {0x2028, 0x202E},
                                              {0x2066, 0x206F},
                                              {0xFEFF, 0xFEFF},
                                              {0xFFF9, 0xFFFB},
                                              {0xE0000, 0xE007F}}};

bool steers(uint32_t code) {
  return std::ranges::any_of(kSteering,
                             [&](const CodeRange& r) { return r.first <= code && code <= r.last; });
}

// The text with what `replacement` makes of each character that must not be shown.
template <class Replacement>
std::string replaced(std::string_view text, bool keeps_lines, Replacement replacement) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character c = character(text, at);
    const bool is_layout = c.code == '\n' || c.code == '\t';
    if ((c.is_utf8 && !steers(c.code)) || (keeps_lines && is_layout))
      shown += text.substr(at, c.bytes);
    else
      shown += replacement(c);
    at += c.bytes;
  }
  return shown;
}

std::string with_question_marks(std::string_view text, bool keeps_lines) {
  return replaced(text, keeps_lines, [](const Character&) { return "?"; });
}

// At most `size` bytes, not cut inside a UTF-8 character.
std::string shortened(std::string text, size_t size) {
  if (text.size() <= size) return text;
  size_t end = size - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Character c = character(text, at);
    if (!c.is_utf8) return false;
    at += c.bytes;
  }
  return true;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    lines.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

std::string printable(std::string_view text) { return shortened(shown_line(text), kMaxShown); }

std::string one_line(std::string_view what) { return shortened(shown_line(what), kMaxLine); }

std::string shown_line(std::string_view text) { return with_question_marks(text, false); }

std::string shown_lines(std::string_view text) { return with_question_marks(text, true); }

std::string shown_json(std::string_view text) {
  return replaced(text, true, [](const Character& c) -> std::string {
    if (!c.is_utf8) return "\uFFFD";
    if (c.code < 0x10000) return fmt::format("\\u{:04x}", c.code);
    const uint32_t above = c.code - 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (above >> 10U), 0xDC00 + (above & 0x3FFU));
  });
}

std::vector<std::string> first_of(std::vector<std::string> entries, std::string_view what) {
  constexpr size_t kMost = 20;
  if (entries.size() <= kMost) return entries;
  const size_t others = entries.size() - kMost;
  entries.resize(kMost);
  entries.push_back(fmt::format("... and {} more {}", others, what));
  return entries;
}

}  // namespace piper
