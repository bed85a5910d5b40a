// The commands of a planner built without libtorch.
#include <piper/cli/command.h>
#include <piper/cli/command_list.h>

namespace piper::cli {

const std::vector<Command>& commands() {
  static const std::vector<Command> list = planner_commands();
  return list;
}

}  // namespace piper::cli
