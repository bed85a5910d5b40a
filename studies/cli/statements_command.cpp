// piper-studies statements: what a paper states in numbers, beside what is computed for it.
#include <piper/cli/command.h>
#include <studies/cli/statement_table.h>
#include <studies/statements.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace piper::studies {

cli::Run add_statements(cli::Subcommand command) {
  std::vector<std::string> names;
  for (const Paper& paper : papers()) names.emplace_back(paper.name);
  auto name = std::make_shared<std::string>(names.front());
  auto json = std::make_shared<bool>(false);
  command.add_option("paper", *name, "whose statements").check(cli::one_of(names)).show_default();
  command.add_flag("--json", *json, "print the result as JSON");
  return [name, json] {
    print_statements(*std::ranges::find(papers(), *name, &Paper::name), *json);
    return 0;
  };
}

}  // namespace piper::studies
