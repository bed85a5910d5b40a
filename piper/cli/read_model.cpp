#include <fmt/format.h>
#include <piper/cli/read_model.h>
#include <piper/model/import.h>

namespace piper::cli {

void add_ignore_flag(Subcommand command, std::vector<std::string>& keys) {
  command
      .add_option("--ignore", keys,
                  "read config.json without this key, which Piper does not know; may be repeated")
      .type_name("KEY")
      .one_each();
}

model::Model read_model(const std::string& name_or_path, const std::vector<std::string>& ignore) {
  model::Model model = model::load_model(name_or_path, ignore);
  for (const std::string& line : model.ignored_on_request)
    say_aside(fmt::format("ignored as asked: {}", line));
  return model;
}

}  // namespace piper::cli
