// What a machine is and how fast: devices, nested levels of network, measured curves. Every fact
// carries its source. Read from JSON (built-ins in configs/clusters, or what `piper profile`
// wrote); knows no model.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cluster/alpha_beta.h>
#include <piper/cluster/curve.h>
#include <piper/cluster/watch.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace piper::cluster {

// One level of the machine, innermost first. Members of level 0 are devices; a member of level i is
// one whole unit of level i-1. E.g. Frontier: node (8 GCDs), switch group (4 nodes), cabinet (32
// groups), system.
struct Level {
  std::string name;         // "node", "switch_group", "rack", "data_centre", "site"
  int64_t num_members = 1;  // units of the level below that one unit of this level holds
  // The path between two devices whose innermost common level this is: bandwidth per device, one
  // direction, when every device of the level communicates at once. Latency: of one collective or
  // message as its caller sees it (start-up included), not of the wire.
  AlphaBeta link;
  // NICs of one unit of the level below, through which it speaks here; 0 = not counted
  int64_t num_nics = 0;
  double nic_bytes_per_second = 0;  // per NIC, one direction; 0 = not stated
};

// A measured rate over a regular grid, interpolated multilinearly in the logarithms of coordinates
// and rate (a power law is exact); outside the grid the nearest edge's rate holds: `outside` says
// so, and `watch` (of a copy made by watched()) notes it.
struct Grid {
  std::vector<std::string> axes;            // {"m", "n", "k"} or {"bytes"}
  std::vector<std::vector<double>> points;  // ascending, per axis
  std::vector<double> rate;                 // row-major over the points; unit depends on the curve
  std::shared_ptr<Watch> watch = {};        // null: nobody asks
  std::string watched_as = {};              // the curve's name in the watch
  double at(const std::vector<double>& coordinates, bool* outside = nullptr) const;
  bool empty() const { return rate.empty(); }
};

// How fast one device computes, in one precision ("fp32", "bf16", "fp64"). Rates are those of one
// device while all devices of its node are busy.
struct Compute {
  double peak_flops_per_second = 0;  // dense peak: MFU divides by it
  Grid gemm;                         // axes m (rows = tokens), n (out), k (in): FLOP/s
  // axes sequence, head_dim: FLOP/s of causal attention, forward (2 half-matmuls counted once)
  Grid attention;
  // the same; the backward counts as twice the forward's FLOPs, as MFU does
  Grid attention_backward;
  double gemm_efficiency = 0;  // of the peak, for large shapes, where no grid is known
};

struct Source {
  std::string fact;    // "compute.bf16.peak_flops_per_second"; see facts.h
  std::string source;  // where it comes from
};

struct Cluster {
  std::string name;
  std::string description;
  std::string device;                      // "H100 SXM", "MI250X GCD", "2 cores of AMD EPYC"
  std::string kind;                        // "gpu" or "cpu"
  int64_t memory_bytes = 0;                // of one device (a CPU rank: its share of the host)
  double memory_bytes_per_second = 0;      // streaming bandwidth of one device
  double fixed_task_seconds = 0;           // cost of starting one kernel / one operation
  std::map<std::string, Compute> compute;  // by precision
  // Element-wise streaming rate by working-set bytes (CPU caches): bytes/s; empty =
  // memory_bytes_per_second.
  Grid element_wise;
  Grid copy;
  // CPU only: ranks of a node share these cores (0 = every device computes alone). A compute task
  // holds one core; ready tasks take cores first come, first served.
  int64_t cores_per_node = 0;
  std::vector<Level> levels;  // innermost first; at least one
  std::map<std::string, double>
      numbers;  // further measured constants, named with their unit ("optimizer_bytes_per_second")
  double number(const std::string& name, double fallback = 0) const;  // `fallback` where not stated
  std::vector<Curve> curves;  // as `piper profile` measured them, point by point; may be empty
  std::vector<Source> sources;
  std::shared_ptr<Watch> watch = {};  // of links; null: nobody asks

  int64_t num_devices() const;       // product of the levels' members
  int64_t devices_per_node() const;  // members of level 0
  // Devices of one unit of level i.
  int64_t devices_of_level(size_t level) const;
  // Index of the innermost level that holds both devices (numbered 0.. in level order).
  size_t common_level(int64_t device_a, int64_t device_b) const;
};

// A copy whose measured curves and fitted links note in `watch` what they are asked outside of
// their points. Links are watched where the cluster holds the points of their fit (curves
// "point-to-point", "all-to-all" and "all-reduce" of all devices of the node). Not to be shared by
// threads.
Cluster watched(const Cluster& cluster, std::shared_ptr<Watch> watch);

// Reads and checks a description: all problems at once as InvalidInput. Unknown keys are refused.
// The keys are documented by configs/clusters/dgx-h100.json, which states nearly all of them.
Cluster parse_cluster(const Json& json, const std::string& source);
// What parse_cluster reads; facts that are not stated (0, an empty curve) are left out.
Json to_json(const Cluster& cluster);
// A built-in name (case does not matter) or a path. Throws InvalidInput (unknown name: with a
// suggestion), IoError.
Cluster load_cluster(const std::string& name_or_path);
// Names of the built-in clusters, sorted (the files of configs/clusters).
std::vector<std::string> builtin_clusters();

}  // namespace piper::cluster
