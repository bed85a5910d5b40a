// The bytes of state that one parameter brings, and of one element of an activation.
#pragma once

#include <piper/strategy/strategy.h>

#include <cstdint>

namespace piper::strategy {

// Bytes of one parameter, by precision: fp32 4 + 4 + 8 (AdamW's two moments), bf16 2 + 4 + 12 (main
// gradients in fp32, and an fp32 master copy), fp64 8 + 8 + 16.
struct StateBytes {
  int64_t weight = 0;
  int64_t gradient = 0;
  int64_t optimizer = 0;
  int64_t total() const { return weight + gradient + optimizer; }
  // What travels of a parameter that changes its rank between two steps: the master copy, or the
  // weight where there is none, and the moments.
  int64_t moved() const { return weight < gradient ? optimizer : weight + optimizer; }
};
StateBytes state_bytes(Precision precision);

// Bytes of one element of an activation.
int64_t element_bytes(Precision precision);

}  // namespace piper::strategy
