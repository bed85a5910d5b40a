// piper bench ...: hands over to piper-bench.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cli/bench_program.h>
#include <piper/cli/command.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace piper::cli {
namespace {

// This process becomes piper-bench, so that arguments, standard streams and exit status are its own
// and a launcher still knows it by its pid.
[[noreturn]] void become_bench(std::vector<std::string> words) {
  const std::filesystem::path program = bench_program();
  words.insert(words.begin(), "piper bench");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  throw IoError(fmt::format("bench: {}: {}", program.string(), std::strerror(errno)));
}

}  // namespace

std::filesystem::path bench_program() {
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path program = folder / "piper-bench";
  if (!std::filesystem::exists(program))
    throw InvalidInput(fmt::format(
        "bench: the program {} is not there; build it: cmake --build {} --target piper-bench",
        program.string(), folder.string()));
  return program;
}

Run add_bench(Subcommand command) {
  command.take_all_unread();
  return [command]() -> int { become_bench(command.rest()); };
}

}  // namespace piper::cli
