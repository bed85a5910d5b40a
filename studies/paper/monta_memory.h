// MoNTA's memory of a mixture model (eq. 1 and 2, Tables 3 and 4) as a paper form: routed experts'
// activations are divided by e although b is the batch of one rank, as Piper's own eq. 2 does
// (paper/piper.h); plans are priced by the exact forms (layer_memory.h). Bytes, as doubles. Pure
// functions, thread-safe.
#pragma once

#include <array>
#include <cstdint>

namespace piper::studies::paper::monta {

// Table 2.
struct Shape {
  double micro_batch = 0, sequence = 0, hidden = 0, num_heads = 0, num_layers = 0;  // b, s, h, a, l
  double top_k = 1;                                                                 // k
  double dense_parameters = 0, expert_parameters = 0;                               // P1, P2
};
struct Degrees {
  int64_t dp = 1, pp = 1, tp = 1, ep = 1;  // d, p, t, e
  int64_t edp = 1;                         // what d is for experts
};

// Table 3, psi_1 + psi_2. 16 bytes a parameter: 2 of the weight, 2 of the gradient, 12 of Adam's
// fp32 state. With m = p t (p t e for experts) shards: 16/m; ZeRO-1 (4 + 12/d)/m; ZeRO-2 (2 +
// 14/d)/m; ZeRO-3 16/(d m). Requires 0 <= zero <= 3.
double state_bytes(const Shape& shape, const Degrees& degrees, int64_t zero);

// The rows of Table 4.
enum class Activations : uint8_t {
  kNotParallel,  // eq. 2: b s h l (13 + 21 k + 5 a s / h)
  kTensor,       // b s h l (5 + 5 k/e + (8 + 16 k/e)/t + 5 a s / (h t))
  kSequence,     // with sequence parallelism: b s h l ((13 + 21 k)/t + 5 a s / (h t))
  kSelective,    // ... and selective recomputation: b s h l (13 + 21 k)/t
  kFull          // ... and full recomputation: 2 b s h l / t
};
inline constexpr std::array kActivations{Activations::kNotParallel, Activations::kTensor,
                                         Activations::kSequence, Activations::kSelective,
                                         Activations::kFull};
const char* name(Activations row);
double activation_bytes(const Shape& shape, const Degrees& degrees, Activations row);

// Eq. 1.
double memory_bytes(const Shape& shape, const Degrees& degrees, int64_t zero, Activations row);

}  // namespace piper::studies::paper::monta
