// piper-train: the commands that need libtorch. `piper` hands over to it (beside.h), and it speaks
// as piper does.
#include <piper/cli/command_list.h>
#include <piper/cli/program.h>

#include <array>
#include <cstddef>

namespace piper::cli {

Run add_profile(Subcommand command);
Run add_train(Subcommand command);
Run add_eval(Subcommand command);
Run add_checkpoint(Subcommand command);
Run add_data(Subcommand command);

namespace {

std::vector<Command> torch_commands() {
  constexpr std::array kAdd{add_profile, add_train, add_eval, add_checkpoint, add_data};
  static_assert(kAdd.size() == kTorchCommands.size());
  std::vector<Command> all;
  for (size_t i = 0; i < kAdd.size(); ++i)
    all.push_back({kTorchCommands[i].name, kTorchCommands[i].summary, kAdd[i]});
  return all;
}

}  // namespace
}  // namespace piper::cli

int main(int argc, char** argv) {
  return piper::cli::run_program({.name = "piper",
                                  .summary = "The commands of piper that need libtorch.",
                                  .footer = "They are called by way of piper: piper train --help.",
                                  .commands = piper::cli::torch_commands()},
                                 argc, argv);
}
