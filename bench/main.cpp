#include <bench/benches.h>
#include <piper/cli/program.h>

int main(int argc, char** argv) {
  return piper::cli::run_program({.name = "piper bench",
                                  .summary = "measure against a limit or an opponent",
                                  .footer = "Every bench takes --json.",
                                  .commands = piper::cli::benches()},
                                 argc, argv);
}
