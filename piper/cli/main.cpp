#include <piper/cli/program.h>

int main(int argc, char** argv) {
  return piper::cli::run_program(
      {.name = "piper",
       .summary =
           "Piper trains Mixture-of-Experts models well on machines whose network is not flat.",
       .footer = "Start with: scripts/demo\nA command's flags: piper COMMAND --help. Every command "
                 "that prints a result takes --json.",
       .commands = piper::cli::commands()},
      argc, argv);
}
