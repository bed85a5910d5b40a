#include <piper/base/error.h>

namespace piper {
namespace {

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

}  // namespace

InvalidInput::InvalidInput(std::vector<std::string> problems)
    : std::runtime_error(join_lines(problems)), problems_(std::move(problems)) {}

namespace internal {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::string text = std::string("internal error: ") + condition + " does not hold at " + file +
                     ":" + std::to_string(line);
  if (!message.empty()) text += ": " + message;
  throw InternalError(text);
}

}  // namespace internal
}  // namespace piper
