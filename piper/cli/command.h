// One file per subcommand: <name>_command.cpp defines add_<name>(), listed in command_list.h
// (planner_commands.cpp and full_commands.cpp, one of which piper links; train_main.cpp).
#pragma once

#include <piper/cli/subcommand.h>

#include <functional>
#include <string>
#include <vector>

namespace piper::cli {

// Runs after parsing; returns the exit code. Throws InvalidInput, IoError, CommError; main() prints
// them, one line a problem, and exits with 2 (input) or 1.
using Run = std::function<int()>;

struct Command {
  std::string name;
  std::string summary;             // one line of `piper --help`
  Run (*add)(Subcommand command);  // declares flags on `command`, returns what runs
};

const std::vector<Command>& commands();

}  // namespace piper::cli
