// What tests compute with: a tensor whose elements all differ, and how far two tensors are apart.
#pragma once

#include <doctest/doctest.h>
#include <piper/nn/aten.h>

#include <cstdint>

namespace piper::nn {

// Elements of a sine between -2 and 2; `phase` makes another tensor of one shape.
inline at::Tensor wave(at::IntArrayRef shape, double phase, at::ScalarType dtype = at::kDouble) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return (at::sin(at::arange(n, at::kDouble) * 12.9898 + phase) * 2).view(shape).to(dtype);
}

// The largest absolute difference of two elements, computed in fp64.
inline double difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace piper::nn
