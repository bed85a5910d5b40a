// What `piper place` has found, as text and as JSON.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cli/allocation_flags.h>
#include <piper/cli/strategy_flags.h>
#include <piper/export/launch_files.h>
#include <piper/placement/nodes_by_step.h>
#include <piper/placement/placed_steps.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace piper::cli {

struct PlaceReport {
  cluster::Allocation allocation;  // the nodes that ranks are put on
  strategy::Strategy strategy;
  placement::Slots slots;
  placement::Placing placing;
  placement::PlacementPrice given, chosen;
  double given_step = 0, chosen_step = 0;                 // seconds, placement/placed_steps.h
  std::optional<double> given_exchange, chosen_exchange;  // seconds of one, simulated
  // Set where another order had less busy links but a slower exchange, so that the given one was
  // kept: seconds of its exchange. Bytes of gradients may hide behind the backward, those of an
  // exchange hardly ever.
  std::optional<double> refused_exchange;
  double pair_bytes = 0;
  // Where one could choose: the nodes that were free, and what was gained.
  std::optional<placement::StepChoice> choice;
  int64_t num_free = 0;

  std::vector<std::string> hosts() const;
  std::vector<exporting::RankHost> rank_hosts() const;
};

// Everything but allocation, strategy and choice. `groups`: rank_traffic() of the strategy.
void fill_in(PlaceReport& report, const model::Model& model,
             std::span<const placement::RankGroup> groups, placement::PlacedStep placed);

// Those that are asked for. Throws IoError.
void write_launch_files(const PlaceReport& report, const LaunchFileFlags& flags);
// How a launcher is told of them.
std::string launch_text(const PlaceReport& report, const LaunchFileFlags& flags);

std::string to_text(const PlaceReport& report);
Json to_json(const PlaceReport& report);

}  // namespace piper::cli
