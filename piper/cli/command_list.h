// The commands that need no libtorch, in the order of `piper --help`, and the words of those that
// do, which a full build puts among them.
#pragma once

#include <piper/cli/command.h>

#include <array>
#include <cstddef>
#include <vector>

namespace piper::cli {

Run add_model(Subcommand command);
Run add_cluster(Subcommand command);
Run add_trainer(Subcommand command);
Run add_plan(Subcommand command);
Run add_map(Subcommand command);
Run add_estimate(Subcommand command);
Run add_compare(Subcommand command);
Run add_sim(Subcommand command);
Run add_exchange(Subcommand command);
Run add_place(Subcommand command);
Run add_migrate(Subcommand command);
Run add_moe(Subcommand command);
Run add_export(Subcommand command);
Run add_report(Subcommand command);
Run add_bench(Subcommand command);
Run add_launch(Subcommand command);
Run add_signature(Subcommand command);
Run add_validate(Subcommand command);

// Commands of piper-train. `place` is where one stands in `piper --help`.
struct TorchCommand {
  size_t place;
  const char* name;
  const char* summary;
};
inline constexpr std::array kTorchCommands{
    TorchCommand{2, "profile",
                 "measure this machine with all its ranks busy; writes a cluster file"},
    TorchCommand{7, "train", "train a model by a strategy, predicted beside measured"},
    TorchCommand{8, "eval", "loss of a model folder on a text"},
    TorchCommand{9, "checkpoint", "list and verify what a run has saved"},
    TorchCommand{10, "data", "build and look at indexed datasets of tokens (.bin, .idx)"}};

inline std::vector<Command> planner_commands() {
  return {
      {"model", "what a model is: parameters, FLOPs, bytes", add_model},
      {"cluster", "what a machine is: devices, levels of network, measured curves", add_cluster},
      {"trainer", "who a plan can be priced for: what each trainer overlaps, launches and keeps",
       add_trainer},
      {"plan", "find the strategy with the highest predicted MFU that fits, and say why", add_plan},
      {"map", "the best strategy of every model on every number of devices", add_map},
      {"estimate", "price one strategy: memory by stage, time by component", add_estimate},
      {"compare", "two strategies on one machine, axis by axis", add_compare},
      {"validate", "price published runs and say how far off each is", add_validate},
      {"sim", "simulate one step in virtual time and write its trace", add_sim},
      {"exchange", "which all-to-all suits a machine, a number of nodes and a size", add_exchange},
      {"place", "which rank on which node of a job, and which nodes to ask for", add_place},
      {"migrate", "what moving experts costs, for any model on any machine", add_migrate},
      {"moe", "what each schedule of a mixture layer costs: plain, Parm's, MoNTA's, in chunks",
       add_moe},
      {"export", "a strategy as flags or configuration of another trainer", add_export},
      {"report", "write a run as one self-contained HTML page", add_report},
      {"bench", "measure against a limit or an opponent", add_bench},
      {"launch", "start `train`, `eval` or a bench as several processes on this machine",
       add_launch},
      {"signature", "one hash over golden plans, predictions and virtual times", add_signature},
  };
}

}  // namespace piper::cli
