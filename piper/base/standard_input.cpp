#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/standard_input.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

namespace piper {
namespace {

std::string read_standard_input(int64_t max_bytes) {
  std::string text;
  std::vector<char> piece(1 << 16);
  while (true) {
    const ssize_t count = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw IoError(fmt::format("standard input: cannot be read: {}", std::strerror(errno)));
    if (count == 0) return text;
    text.append(piece.data(), static_cast<size_t>(count));
    if (std::ssize(text) > max_bytes)
      throw InvalidInput(
          fmt::format("standard input: is longer than {} bytes; allowed: up to that", max_bytes));
  }
}

}  // namespace

const std::string& standard_input(int64_t max_bytes) {
  static std::mutex mutex;
  static std::string text;
  static bool is_read = false;
  const std::lock_guard lock(mutex);
  if (!is_read) text = read_standard_input(max_bytes);
  is_read = true;
  return text;
}

Json read_json_input(const std::string& path_or_dash, int64_t max_bytes) {
  if (path_or_dash != kStandardInput) return read_json_file(path_or_dash, max_bytes);
  return parse_json(standard_input(max_bytes), "standard input");
}

}  // namespace piper
