// The commands of a full build: the planner's, and those that need libtorch, which piper-train runs.
#include <piper/cli/beside.h>
#include <piper/cli/command_list.h>

#include <cstddef>
#include <utility>

namespace piper::cli {
namespace {

template <size_t i>
Run add_torch_command(Subcommand command) {
  const char* const name = kTorchCommands[i].name;
  return hand_over(command,
                   {.program = "piper-train", .command = name, .name = "piper", .words = {name}});
}

template <size_t... i>
void insert_torch_commands(std::vector<Command>& all, std::index_sequence<i...>) {
  (all.insert(all.begin() + static_cast<std::ptrdiff_t>(kTorchCommands[i].place),
              {kTorchCommands[i].name, kTorchCommands[i].summary, add_torch_command<i>}),
   ...);
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> list = [] {
    std::vector<Command> all = planner_commands();
    insert_torch_commands(all, std::make_index_sequence<kTorchCommands.size()>());
    return all;
  }();
  return list;
}

}  // namespace piper::cli
