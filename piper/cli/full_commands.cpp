// The commands of a full build: the planner's, and those that need libtorch, which piper-train
// runs.
#include <fmt/format.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/cli/beside.h>
#include <piper/cli/command_list.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace piper::cli {
namespace {

// What the libraries of piper-train take before its first line; in less, the loader ends it with
// words and an exit code of its own.
constexpr int64_t kLeastAddressSpace = int64_t{512} << 20;

void require_address_space(const std::string& command) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < rlim_t{kLeastAddressSpace})
    throw IoError(fmt::format("{}: {}; libtorch alone takes {}", command, cause_of(ENOMEM),
                              format_bytes(static_cast<double>(kLeastAddressSpace))));
}

template <size_t i>
Run add_torch_command(Subcommand command) {
  const char* const name = kTorchCommands[i].name;
  const Run run = hand_over(
      command, {.program = "piper-train", .command = name, .name = "piper", .words = {name}});
  return [run, name]() -> int {
    require_address_space(name);
    return run();
  };
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
