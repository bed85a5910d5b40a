// The bytes that every communication task of a step sends to every other rank, as integers: what
// the prices rest on, and what the transport's counters of a real run must show (train/traffic.h).
//
//   send                  the hidden rows of a micro-batch
//   counts                8 bytes for every expert of the peer, to every other member; and for
//                         every count of others that the algorithm has to know
//                         (collective/dispatch_combine_counts.h)
//   dispatch, combine     the rows of that layer and micro-batch, as the strategy's algorithm moves
//                         them; what a rank keeps crosses nothing. Where tokens travel in place of
//                         their copies (strategy::deduplicates): tokens; in the dispatch, forward
//                         and backward, a weight for each copy besides; and for counts, what
//                         collective/known_routes.h tells
//   gather, scatter       of hidden states and experts' rows: to everyone one's own, or what it
//                         keeps
//   all-reduce            direct (collective/all_reduce_direct.h): to a peer its share of our
//                         values, and our share's sum
#pragma once

#include <piper/cost/prices.h>
#include <piper/schedule/step.h>

#include <cstdint>
#include <vector>

namespace piper::cost {

struct SentBytes {
  graph::TaskId task;
  Rank to;
  int64_t bytes = 0;  // may be 0: a message all the same
};

// By task, then by the order of the group's members. Exact where `load.routed` holds the rows of
// every micro-batch (or the model routes nothing); otherwise what the load's shares come to.
// `topology`: of all ranks. Same requirements as price().
std::vector<SentBytes> sent_bytes(const schedule::StepGraph& step, const model::Model& model,
                                  const strategy::Strategy& strategy,
                                  const collective::Topology& topology,
                                  const ExpertLoad& load = {});

// Whether an all-reduce of the step sums gradients, in the strategy's form; counts, statistics and
// parts of hidden states are summed directly.
bool is_of_gradients(schedule::SegmentKind kind);

// The buffer that an all-reduce of the step sums: elements, and bytes of one.
struct ReducedBuffer {
  int64_t elements = 0;
  int64_t element_bytes = 0;
  int64_t bytes() const { return elements * element_bytes; }
};
ReducedBuffer reduced_buffer(const schedule::Segment& segment, const model::Model& model,
                             const strategy::Strategy& strategy);

}  // namespace piper::cost
