// What one mixture layer costs a rank in each of the orders that papers propose, on a cluster's own
// curves: its exchanges, its gathers and its experts, forward and backward. The gate and the
// sorting of rows, which all have alike, are left out.
//
// tp ranks hold the same T tokens (no sequence parallelism), so R = T k rows (times rows_per_copy)
// of H values, I bytes.
// ep ranks share the experts, etp ranks share each expert's matrices; tp and etp groups are
// neighbours. An exchange "of B" is B bytes that a rank has for all others together, in node-aware
// order, a gather "of B" is what each member holds behind it. D = max(1, etp / tp) kinds of rows
// meet in an etp group.
//
//   plain          exchange I, gather D I where D > 1, experts on D R rows, sum over etp, exchange
//                  I: every rank sends all rows, so each is computed max(1, tp / etp) times
//   parm-baseline  DeepSpeed-MoE's order (Parm, eq. 1): gather the tokens of an etp group, exchange
//                  etp I, experts on etp R rows, sum over etp, exchange etp I; back: the same
//   parm-s1        a tp-th of the tokens before the gate: exchange over ep x etp of etp I / tp,
//                  experts on etp R / tp rows, the same exchange back, gather T H over tp
//   parm-s2        a tp-th of the rows behind the gate: the same exchanges, and a gather of I over
//                  tp beside the second one, slice by slice (SAA)
//   monta-o1       likewise, but exchange I / tp over ep, then gather etp I / tp over etp; back:
//                  sum over etp, exchange I / tp, gather I over tp
//   monta-o2       the same in N chunks: one is gathered and copied to its place while the next
//                  travels
//   monta-o3       likewise, copies beside the gather after; both use the memory's bandwidth
//   chunked        plain, in N chunks of tokens: one travels while another is computed, as this
//                  Piper executes it (mixture_order.h)
//   fastermoe      likewise, in N groups of the ranks that rows go to; own rows are in the first
//
// What runs at the same time shares the levels of the network that both cross. The backward does
// the same with conjugates (split and gather change places); its experts do twice the products.
// Pure functions, thread-safe.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::cost {

struct MoeSetting {
  double hidden = 0;                // H
  double tokens = 0;                // T, of a micro-batch, on every rank of a tp group
  double rows_per_copy = 1;         // sent and computed: a capacity factor whose padding travels
  int64_t tp = 1, ep = 1, etp = 1;  // one of tp and etp divides the other
  double grouped_efficiency = 1;    // of the experts' products: TrainerProfile
  strategy::Precision precision = strategy::Precision::kBf16;
};

// Seconds of one direction. The first four are those of each alone; `total` is what they take
// together.
struct MoePass {
  double exchange = 0, gather = 0, copy = 0, experts = 0;
  double total = 0;
  double overlapped() const { return exchange + gather + copy + experts - total; }
};

struct MoeSchedulePrice {
  std::string name;
  // The best of 1 to strategy::kMaxMoeChunks where there are chunks, of 1 to ep groups of ranks.
  int64_t num_chunks = 1;
  MoePass forward, backward;
  // Bytes that a rank sends to other nodes and inside its own, forward and backward.
  double bytes_across = 0, bytes_inside = 0;
  double total() const { return forward.total + backward.total; }
};

// In the order above. Requires a mixture layer whose experts ep divides; the cluster has figures
// for the precision (InvalidInput).
std::vector<MoeSchedulePrice> price_moe_schedules(const model::FeedForward& layer,
                                                  const MoeSetting& setting,
                                                  const cluster::Cluster& cluster);

// `chunked`, `fastermoe`, `parm-s2` or `monta-o2` as this Piper executes them: the experts of a
// chunk, too, run beside the travels of others (mixture_order.h). In 1, 2, ... chunks, at most
// strategy::kMaxMoeChunks, the tokens, and the peers. Requires what price_moe_schedules() does.
std::vector<MoeSchedulePrice> price_chunks(const model::FeedForward& layer,
                                           const MoeSetting& setting,
                                           const cluster::Cluster& cluster,
                                           strategy::MoeSchedule schedule);

// Index of the cheapest, the first of equals. Requires a list.
size_t cheapest(const std::vector<MoeSchedulePrice>& list);
// One sentence: by which terms `best` is cheaper than `other`.
std::string why_cheaper(const MoeSchedulePrice& best, const MoeSchedulePrice& other);

}  // namespace piper::cost
