// What a segment makes a device do, as a list of primitive operations: counted here from shapes
// alone, priced in segment_time.h with the curves of a cluster.
//
// A GEMM's shape is kept, because its rate depends on it: m rows (tokens), n outputs, k inputs. The
// backward of one GEMM is two, of shapes of their own: gradient of the input (m, k, n) and of the
// weight (n, k, m). Routed experts are one GEMM each, with as many rows as the expert receives.
#pragma once

#include <piper/cost/activation.h>
#include <piper/graph/graph.h>
#include <piper/model/model.h>
#include <piper/schedule/step.h>

#include <cstdint>
#include <vector>

namespace piper::cost {

enum class WorkKind : uint8_t {
  kGemm,               // m, n, k
  kAttention,          // flops; sequence, head_dim
  kAttentionBackward,  // flops; sequence, head_dim
  kElementWise,        // bytes read and written
  kExponential,  // elements that pass through exp (SiLU, softmax): bound by arithmetic, not memory
  kCopy,         // payload bytes (gathers and scatters of rows, permutations)
  kOptimizer,    // bytes read and written by AdamW
  kFromMemory,   // bytes read that no cache holds any more
};

struct Work {
  WorkKind kind = WorkKind::kElementWise;
  double amount = 0;  // FLOPs, bytes or elements of one repetition
  double m = 0, n = 0, k = 0;
  double sequence = 0, head_dim = 0;
  double repetitions = 1;  // e.g. one a local expert
  double launches = 1;     // operations started, per repetition
};

// The work of a compute segment in phases forward (and recompute, the same) or backward, whole or
// in its two parts. Update segments are in update_work().
std::vector<Work> segment_work(const model::Model& model, const schedule::Segment& segment,
                               graph::Phase phase, const SegmentWork& work);

// kGradientNorm and kOptimizer of a rank that holds `num_parameters`: read the gradients; AdamW
// reads weight, gradient and moments and writes weight and moments.
std::vector<Work> update_work(schedule::SegmentKind kind, double num_parameters,
                              strategy::Precision precision);

}  // namespace piper::cost
