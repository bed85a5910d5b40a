#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cli/beside.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace piper::cli {
namespace {

// In place of this process, so that a launcher still knows it by its pid.
[[noreturn]] void become(const Beside& to, const std::vector<std::string>& rest) {
  const std::filesystem::path program = program_beside(to.program, to.command);
  std::vector<std::string> words{to.name};
  words.insert(words.end(), to.words.begin(), to.words.end());
  words.insert(words.end(), rest.begin(), rest.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  throw IoError(fmt::format("{}: {}: {}", to.command, program.string(), std::strerror(errno)));
}

}  // namespace

std::filesystem::path program_beside(const std::string& name, const std::string& command) {
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path program = folder / name;
  if (!std::filesystem::exists(program))
    throw InvalidInput(
        fmt::format("{}: the program {} is not there; build it: cmake --build {} --target {}",
                    command, program.string(), folder.string(), name));
  return program;
}

Run hand_over(Subcommand command, const Beside& to) {
  command.take_all_unread();
  return [command, to]() -> int { become(to, command.rest()); };
}

Run add_bench(Subcommand command) {
  return hand_over(
      command, {.program = "piper-bench", .command = "bench", .name = "piper bench", .words = {}});
}

}  // namespace piper::cli
