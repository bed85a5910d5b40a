// The matrix products of the segments, by the fastest of the libraries that are here.
//
// libtorch's products go through MKL, which keeps to AVX2 on AMD processors; oneDNN's run there
// with AVX-512, 8-12 % faster on experts' shapes (docs/results.md), and with AVX2 alone, too, most
// of its products are the faster ones (docs/numerics.md). So on an AMD processor with AVX2 or more,
// and where the build found oneDNN (Debian: libdnnl-dev), fp32 products on the CPU go to it unless
// their form does not suit it; everything else to libtorch. The choice is a function of the
// processor and of the operands' shapes and strides alone: a run repeats bit by bit. The
// environment variable PIPER_PRODUCTS overrides the processor: "libtorch" leaves oneDNN out,
// "onednn" takes it on every one.
#pragma once

#include <piper/nn/aten.h>

namespace piper::nn {

// out[M, N] := beta * out + a[M, K] b[K, N]; beta 0 never reads out. Matrices of one dtype and device, either stride 1 in
// a and b. No allocation by libtorch; but for an fp32 `out` of bf16 matrices (a main gradient) the product is formed in bf16
// first. Thread-safe.
void product_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta = 0);

// a b in new storage.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
// added + a b in new storage.
at::Tensor add_product(const at::Tensor& added, const at::Tensor& a, const at::Tensor& b);

// Whether some products go to oneDNN here. PIPER_PRODUCTS is read once. Throws InvalidInput for a
// value that it knows not, or for "onednn" in a build without it.
bool uses_onednn();
// The same for a value of PIPER_PRODUCTS (nullptr: unset).
bool uses_onednn(const char* wanted, bool is_faster_here);

}  // namespace piper::nn
