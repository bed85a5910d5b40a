#include <fmt/format.h>
#include <piper/cli/byte_count.h>

#include <charconv>

namespace piper::cli {

int64_t read_bytes(const std::string& flag, const std::string& text, int64_t min, int64_t max,
                   std::vector<std::string>* problems) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string suffix(rest, end);
  const size_t shift = suffix.size() == 1 ? std::string("KMG").find(suffix) : std::string::npos;
  const bool known = suffix.empty() || shift != std::string::npos;
  const int64_t scale = suffix.empty() ? 1 : int64_t{1} << (10 * (shift + 1) % 64);
  if (error == std::errc() && known && value >= 0 && value <= max / scale && value * scale >= min)
    return value * scale;
  problems->push_back(fmt::format("{} is '{}'; allowed: an integer from {} to {}{}", flag, text,
                                  min, max, max > 4096 ? ", K, M or G may follow" : ""));
  return min;
}

}  // namespace piper::cli
