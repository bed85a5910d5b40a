// --model, --cluster, --tp, --etp, --ep, ...: the mixture layer that a command is asked about, and
// the machine and the ranks that compute it.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cli/subcommand.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/trainer/moe_schedules.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::cli {

struct MoeLayerFlags {
  std::string model, cluster, precision;
  std::vector<std::string> ignore;
  int64_t tp = 1, etp = 1, ep = 8, sequence = 4096, micro_batch = 1;
};

// `flags` outlives `command`.
void add_moe_layer_flags(Subcommand command, MoeLayerFlags& flags);

struct MoeLayer {
  model::Model model;
  size_t index = 0;  // of the model's first mixture layer
  model::FeedForward feed_forward;
  cluster::Cluster machine;
  strategy::Strategy strategy;  // in which such a layer stands
  cost::MoeSetting setting;
};

// Throws InvalidInput, one line a problem.
MoeLayer read_moe_layer(const MoeLayerFlags& flags);

// {"model", "cluster", "layer", "tp", "etp", "ep", "ranks", "tokens"}
Json to_json(const MoeLayer& layer);
// "mixtral-8x7b on a800, layer 0: 8 experts, 2 chosen; tp 8, ..."
std::string in_words(const MoeLayer& layer);

}  // namespace piper::cli
