// piper-studies: what papers print, beside what Piper computes for it.
#include <piper/cli/program.h>

namespace piper::studies {

cli::Run add_statements(cli::Subcommand command);
cli::Run add_phases(cli::Subcommand command);
cli::Run add_estimate(cli::Subcommand command);
cli::Run add_moe(cli::Subcommand command);
cli::Run add_migrate(cli::Subcommand command);

}  // namespace piper::studies

int main(int argc, char** argv) {
  using namespace piper::studies;
  return piper::cli::run_program(
      {.name = "piper-studies",
       .summary = "What papers about training Mixture-of-Experts models print, beside what Piper "
                  "computes for it.",
       .footer = "A command's flags: piper-studies COMMAND --help. Every command takes --json.",
       .commands =
           {{"statements",
             "a paper's figures and claims, with verdicts: holds, misprint, miss, fitted",
             add_statements},
            {"phases", "phases of one layer beside a published trace", add_phases},
            {"estimate", "the Piper paper's equations 3, 4 and 6 for a strategy, as printed",
             add_estimate},
            {"moe", "how Parm and PipeMoE choose a schedule and a number of chunks, by price too",
             add_moe},
            {"migrate", "the Piper paper's Table IV, and its count for any model on any machine",
             add_migrate}}},
      argc, argv);
}
