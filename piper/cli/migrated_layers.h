// The mixture layers of a model whose experts change their rank, and what travels then: what
// `piper migrate` prints.
#pragma once

#include <piper/cli/subcommand.h>
#include <piper/cluster/cluster.h>
#include <piper/model/model.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::cli {

struct MigrationFlags {
  std::string model, cluster;  // "" = not given
  std::vector<std::string> ignore;
  int64_t ep = 8;
};

// Declares --model, --ignore, --cluster and --ep. `flags` outlives `command`.
void add_migration_flags(Subcommand command, MigrationFlags& flags);

// Neighbouring layers whose mixtures are alike.
struct MigratedLayers {
  std::string layers;  // "3" or "3-60"
  int64_t num_experts = 0;
  int64_t parameters = 0;     // of one rank's experts of one layer
  double expert_bytes = 0;    // that travel of one expert
  double bytes = 0;           // that one GPU sends when all experts of a layer change their rank
  double seconds = 0;         // of that exchange
  double expert_seconds = 0;  // one expert to a neighbour
};

// The whole state of all experts of a layer as an all-to-all among `ep` ranks, an equal part to
// every member.
double migration_seconds(const cluster::Cluster& machine, int64_t ep, double bytes);

// Throws InvalidInput: a dense model, more ranks than devices, experts that they do not divide.
std::vector<MigratedLayers> migrated_layers(const model::Model& model,
                                            const cluster::Cluster& machine, int64_t ep);

}  // namespace piper::cli
