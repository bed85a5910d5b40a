// What measured curves say to whoever chooses shapes (Piper section IV-A): the head size at which
// attention is fastest, and the micro-batches at which attention and experts both run well. Pure
// functions, thread-safe.
#pragma once

#include <piper/cluster/curve.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::cluster {

struct HeadSize {
  double head_dim = 0;
  // Geometric mean over the shapes of rate / (best rate at that shape): 1 = the best everywhere.
  double relative_rate = 0;
  int64_t num_shapes = 0;  // what it was compared at
};

// Ranks the head sizes of a curve with the axis "head_dim", best first (ties: the smaller). Head
// sizes are compared at equal other coordinates, "heads" and "kv_heads" aside: a fixed hidden size
// has fewer heads the larger they are, so kv_heads enters as its ratio to heads. Shapes with one
// head size only compare nothing and are left out.
std::vector<HeadSize> rank_head_sizes(const Curve& attention);

// The micro-batches of both curves, ascending.
struct JoinedPoint {
  double sequences = 0;  // of a micro-batch
  double attention_rate = 0, experts_rate = 0;
  double attention_part = 0, experts_part = 0;  // of the best rate of each curve
  bool both_well = false;
};

struct Join {
  std::vector<JoinedPoint> points;
  // The smallest micro-batch at which both run well: larger ones cost memory and bubbles. Empty:
  // there is none.
  std::optional<double> smallest;
  // "1, 2, 4": those at which both run well; "" = none.
  std::string well_text() const;
};

// Joins two curves with the axis "sequences" at the micro-batches that both have: "well" = at least
// `well` of the best rate of its own curve.
Join join_micro_batches(const Curve& attention, const Curve& experts, double well = 0.9);

// What a profile's curves say: head sizes by "attention_shapes.*" where they were measured (else by
// "attention.*"), the join of "join_attention.*" and "join_experts.*". Empty where the curves are
// not there; of several precisions the first.
std::vector<HeadSize> head_sizes_of(const std::vector<Curve>& profiled);
std::optional<Join> join_of(const std::vector<Curve>& profiled);

}  // namespace piper::cluster
