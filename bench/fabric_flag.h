// --fabric: the network of a described cluster's nodes redrawn as a shape by name (sim/fabric_shapes.h), to ask how an
// algorithm does on another one.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/sim/fabric.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::cli {

// "fat-tree:2": a shape, and by how much its uplinks (a Dragonfly's bundles, a line between
// centres) are narrower than what lies below (1 without it).
struct FabricShape {
  std::string name;
  double oversubscription = 1;
};

const std::vector<std::string>& fabric_shapes();
// Throws InvalidInput naming what is allowed.
FabricShape parse_fabric_shape(const std::string& text);
// As many nodes as asked for, with the NICs, rates, latencies and costs of the cluster's. Throws
// InvalidInput where the nodes do not make the shape.
sim::Fabric shaped_fabric(const FabricShape& shape, const cluster::Cluster& cluster,
                          int64_t num_nodes);

}  // namespace piper::cli
