// What the main() of a program with subcommands does: it finds the subcommand, turns every failure
// into one clear line a problem, and chooses the exit code: 0 done, 1 the world failed (files,
// ranks, the console) or we did, 2 the input was wrong, 3 stopped and saved (stop_signals.h).
#pragma once

#include <piper/cli/command.h>

#include <string>
#include <vector>

namespace piper::cli {

struct Program {
  std::string name;     // as its user calls it: "piper", "piper bench"
  std::string summary;  // above the commands in --help
  std::string footer;   // below them
  std::vector<Command> commands;
};

// The exit code. Never throws.
int run_program(const Program& program, int argc, char** argv);

}  // namespace piper::cli
