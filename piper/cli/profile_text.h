// What `piper profile` prints, table by table.
#pragma once

#include <piper/cluster/cluster.h>

#include <cstdint>
#include <string>

namespace piper::cli {

// GEMM rates over rows for a few weights, by precision.
void print_rates(const cluster::Cluster& machine);
// How fast each class of products is by one library and the other; nothing where that was not
// measured.
void print_products(const cluster::Cluster& machine);
// One line a curve: points, the best rate and where, outliers, points whose interval stayed wider
// than `tight`.
void print_curves(const cluster::Cluster& machine, double tight);
// Alpha, beta, R^2 and residuals of every fitted link.
void print_links(const cluster::Cluster& machine);
void print_head_sizes(const cluster::Cluster& machine);
// Nothing where the machine has no join.
void print_join(const cluster::Cluster& machine, const std::string& model, int64_t sequence,
                int64_t ep);
void print_points(const cluster::Cluster& machine);
// Two lines about all points: how many medians are less sure than asked, how many of `planned`
// points were left out, and what stood out.
void print_noise(const cluster::Cluster& machine, double tight, int64_t planned);

}  // namespace piper::cli
