// piper bench NAME: hands over to the bench named.
#include <piper/base/error.h>
#include <piper/cli/bench.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace piper::cli {

Run add_bench(Subcommand command) {
  command.require_subcommand();
  std::vector<std::pair<Subcommand, Run>> runs;
  for (const Command& bench : benches()) {
    const Subcommand sub = command.add_subcommand(bench.name, bench.summary);
    runs.emplace_back(sub, bench.add(sub));
  }
  return [runs] {
    const auto chosen =
        std::ranges::find_if(runs, [](const auto& bench) { return bench.first.parsed(); });
    PIPER_CHECK(chosen != runs.end());
    return chosen->second();
  };
}

}  // namespace piper::cli
