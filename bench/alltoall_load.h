// How many bytes every rank has for every other one in `piper bench alltoall`.
#pragma once

#include <piper/collective/topology.h>
#include <piper/cost/load_distribution.h>

#include <cstdint>
#include <vector>

namespace piper::cli {

// By receiver, how many times `bytes` each sender has for it. In the words of --load elsewhere:
//   uniform       1 for all
//   hot-rank:F    F for the first rank of every node, 1 for the others
//   zipf:S        in proportion to k^-S for the k-th of the ranks in a fixed shuffled order; mean 1
//   trace:FILE    what the experts of the trace's middle step, first layer, receive: a rank holds an
//                 equal share of the experts, in their order; mean 1
// Throws InvalidInput for other words, and for a trace with fewer experts than ranks or a number of
// them that the ranks do not divide.
std::vector<double> receiver_shares(const cost::LoadDistribution& load,
                                    const collective::Topology& topology, int64_t num_ranks);

// 0 .. n - 1 in an order shuffled once for all: the same everywhere.
std::vector<int64_t> fixed_order(int64_t n);

// By expert, what those of the trace's middle step, first layer, receive. Requires a load of kind
// kTrace.
const std::vector<double>& middle_of_trace(const cost::LoadDistribution& load);

// Whole bytes for every pair, own parts included.
collective::CountOf counts_of(const std::vector<double>& shares, int64_t bytes_per_pair);

}  // namespace piper::cli
