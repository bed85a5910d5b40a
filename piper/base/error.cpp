#include <piper/base/error.h>
#include <piper/base/printable.h>

#include <utility>

namespace piper {
namespace {

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

std::vector<std::string> shown(std::vector<std::string> problems) {
  problems = first_of(std::move(problems), "problems");
  for (std::string& problem : problems) problem = shown_line(problem);
  return problems;
}

}  // namespace

InvalidInput::InvalidInput(std::vector<std::string> problems)
    : InvalidInput(Shown{shown(std::move(problems))}) {}

InvalidInput::InvalidInput(Shown shown)
    : std::runtime_error(join_lines(shown.problems)), problems_(std::move(shown.problems)) {}

IoError::IoError(const std::string& what, int cause)
    : std::runtime_error(shown_line(what)), cause_(cause) {}

namespace internal {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  std::string text = std::string("internal error: ") + condition + " does not hold at " + file +
                     ":" + std::to_string(line);
  if (!message.empty()) text += ": " + message;
  throw InternalError(text);
}

}  // namespace internal
}  // namespace piper
