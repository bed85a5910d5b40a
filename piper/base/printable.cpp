#include <piper/base/printable.h>

#include <algorithm>
#include <utility>

namespace piper {
namespace {

constexpr size_t kMaxShown = 60;
constexpr size_t kMaxLine = 1000;

std::string without_controls(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

// At most `size` bytes, not cut inside a UTF-8 character.
std::string shortened(std::string text, size_t size) {
  if (text.size() <= size) return text;
  size_t end = size - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace

std::string printable(std::string text) {
  return shortened(without_controls(std::move(text)), kMaxShown);
}

std::string one_line(std::string what) {
  return shortened(without_controls(std::move(what)), kMaxLine);
}

}  // namespace piper
