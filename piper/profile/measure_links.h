// Curves of communication between ranks, with their alpha-beta fits: messages to the next rank,
// all-to-all and all-reduce, and on demand the all-reduce's two halves, among all ranks and among
// fewer.
#pragma once

#include <piper/cluster/curve.h>
#include <piper/comm/world.h>
#include <piper/nn/aten.h>
#include <piper/profile/profile_journal.h>
#include <piper/profile/time_shares.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace piper::profile {

struct LinkOptions {
  int64_t num_ranks = 4;
  // Where the ranks' operands are: rank r's on devices[r mod their number], whose operations follow
  // one another as a step's do. Empty: in the host's memory.
  std::vector<at::Device> devices = {};
  // Groups of 2, 4, 8 .. ranks besides all, messages up to 64 MB, and "reduce-scatter" and
  // "all-gather".
  bool full = false;
  double tight = 0.02;
  double operand_bytes =
      1e9;  // that the buffers of one rank may take; larger messages are left out
};

// The same among all ranks of `world`, which may live in several processes: all of them call it
// with the same options and budget. Returns the curves in process 0 and nothing elsewhere, nor of
// one rank. Nothing is restored: the processes have to measure alike.
std::vector<cluster::Curve> measure_links_of(
    comm::World& world, const LinkOptions& options, double budget_seconds,
    const std::function<void(const std::string& curve)>& after_point);

// How many points measure_links() has: what a TimeShares counts. 0 with one rank, which has no
// links.
int64_t num_link_points(const LinkOptions& options);

// "point-to-point", "all-to-all", "all-reduce" of all ranks, and "..., 2 ranks" of fewer. Axis:
// bytes (of a message; of what one rank holds for all; of what is summed or gathered). Amount: what
// leaves a rank, in an all-reduce in one of its two halves. Empty with one rank. Throws CommError
// when a rank fails.
std::vector<cluster::Curve> measure_links(
    const LinkOptions& options, TimeShares& shares, ProfileJournal& journal,
    const std::function<void(const std::string& curve)>& after_point);

}  // namespace piper::profile
