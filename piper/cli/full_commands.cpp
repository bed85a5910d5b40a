// All commands: the planner's and those that need libtorch.
#include <piper/cli/command.h>
#include <piper/cli/command_list.h>

namespace piper::cli {

Run add_profile(Subcommand command);
Run add_train(Subcommand command);
Run add_eval(Subcommand command);
Run add_checkpoint(Subcommand command);
Run add_data(Subcommand command);

const std::vector<Command>& commands() {
  static const std::vector<Command> list = [] {
    std::vector<Command> all = planner_commands();
    all.insert(all.begin() + 2,
               {"profile", "measure this machine with all its ranks busy; writes a cluster file",
                add_profile});
    all.insert(all.begin() + 7,
               {"train", "train a model by a strategy, predicted beside measured", add_train});
    all.insert(all.begin() + 8, {"eval", "loss of a model folder on a text", add_eval});
    all.insert(all.begin() + 9,
               {"checkpoint", "list and verify what a run has saved", add_checkpoint});
    all.insert(all.begin() + 10,
               {"data", "build and look at indexed datasets of tokens (.bin, .idx)", add_data});
    return all;
  }();
  return list;
}

}  // namespace piper::cli
