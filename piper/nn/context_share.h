// The tokens of a sequence that one of the ranks has which share it (context parallelism;
// schedule/step.h). A sequence is cut into 2 n equal parts, of which rank i of n has two: causal
// scores of an early part are few, those of a late part many, and together they are the same for
// every rank (Llama 3, section 3.3.2).
//
//   n = 2, 8 tokens     rank 0  0 1 . . . . 6 7      rank 1  . . 2 3 4 5 . .
#pragma once

#include <piper/nn/aten.h>

#include <array>
#include <cstdint>

namespace piper::nn {

struct ContextShare {
  int64_t index = 0, count = 1;

  // This rank's two parts, by position.
  std::array<int64_t, 2> parts() const { return {index, 2 * count - 1 - index}; }
  // Returns the own tokens' part of [B, S, ...], [B, S / n, ...]; with one rank x itself. Requires
  // 2 n to divide S (PIPER_CHECK).
  at::Tensor own(const at::Tensor& x_BS) const;
  // What all ranks hold of `sequences` sequences, one rank after the other, [B S, C], to the order
  // of the sequences, [B, S, C]; and back. In new storage, but for one rank.
  at::Tensor in_order(const at::Tensor& by_rank_TC, int64_t sequences) const;
  at::Tensor by_rank(const at::Tensor& in_order_BSC) const;
};

// A step of a ring (schedule/ring_attention.h): own queries and the keys of the rank `hop` places
// before. If that is an earlier rank, the early one of its two parts of a sequence lies before both
// own parts, and the late one before neither; if it is a later rank, both its parts lie before the
// own late part alone. So half of one rank's tokens meet all of the other's, which is as much work
// for every rank.
//
//   n = 3, rank 1 (parts 1 and 4)     of rank 0: queries 1 4, keys 0
//                                     of rank 2: queries 4, keys 2 3
struct RingStep {
  ContextShare share;
  int64_t hop = 0;

  bool is_own() const { return hop == 0; }
  bool reads_early_keys() const { return hop > 0 && hop <= share.index; }  // else all
  bool has_late_queries() const { return hop > share.index; }              // else all
  // Return those of own queries, and of keys, that meet, along `dimension`: views.
  at::Tensor queries(const at::Tensor& x, int64_t dimension) const;
  at::Tensor keys(const at::Tensor& x, int64_t dimension) const;
};

}  // namespace piper::nn
