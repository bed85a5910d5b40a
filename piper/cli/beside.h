// Commands that programs beside this one run: `piper bench` is piper-bench, and those that need
// libtorch are piper-train, so that `piper plan` starts without loading it (half a second).
#pragma once

#include <piper/cli/command.h>

#include <filesystem>
#include <string>
#include <vector>

namespace piper::cli {

// Where a program lies that runs `command`. Throws InvalidInput, with the command that builds it,
// where it is not there.
std::filesystem::path program_beside(const std::string& program, const std::string& command);

// The command becomes that program: arguments, standard streams, pid and exit status are its own.
// It is told what the user called: `name`, then `words`, then what follows on the command line.
struct Beside {
  std::string program;  // "piper-train"
  std::string command;  // "train"
  std::string name;     // "piper"
  std::vector<std::string> words;
};
Run hand_over(Subcommand command, const Beside& to);

}  // namespace piper::cli
