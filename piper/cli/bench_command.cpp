// piper bench NAME: hands over to the bench named.
#include <piper/base/error.h>
#include <piper/cli/bench.h>

#include <map>

namespace piper::cli {

Run add_bench(CLI::App& command) {
  command.require_subcommand(1);
  std::map<const CLI::App*, Run> runs;
  for (const Command& bench : benches()) {
    CLI::App* sub = command.add_subcommand(bench.name, bench.summary);
    runs[sub] = bench.add(*sub);
  }
  return [&command, runs] {
    const std::vector<CLI::App*> chosen = command.get_subcommands();
    PIPER_CHECK(chosen.size() == 1);
    return runs.at(chosen.front())();
  };
}

}  // namespace piper::cli
