// The model that a command is given, and the keys of its config.json that the user asks to leave
// out.
#pragma once

#include <piper/cli/subcommand.h>
#include <piper/model/model.h>

#include <string>
#include <vector>

namespace piper::cli {

// Declares --ignore. `keys` outlives `command`.
void add_ignore_flag(Subcommand command, std::vector<std::string>& keys);

// model::load_model; each key that was left out is a line on standard error.
model::Model read_model(const std::string& name_or_path, const std::vector<std::string>& ignore);

}  // namespace piper::cli
