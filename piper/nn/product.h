// The matrix products of the segments, by the fastest of the libraries that are here.
//
// libtorch's products go through MKL, which keeps to AVX2 on AMD processors; oneDNN's run there
// with AVX-512, 8-12 % faster on experts' shapes (docs/results.md), and with AVX2 alone, too, most
// of its products are the faster ones (docs/numerics.md). Who does a product of fp32 on the CPU,
// where the build found oneDNN (Debian: libdnnl-dev), follows from the first of these that says so:
//   1. the environment variable PIPER_PRODUCTS: "libtorch" leaves oneDNN out, "onednn" takes it on
//      every processor where the form suits it;
//   2. what was measured (choose_products, product_choice.h): by `piper profile`, for all ranks;
//   3. a rule: on an AMD processor with AVX2 or more, oneDNN where the form suits it.
// Everything else goes to libtorch. The choice is a function of these and of the operands' shapes
// and strides alone: a run repeats bit by bit.
#pragma once

#include <piper/nn/aten.h>
#include <piper/nn/product_choice.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace piper::nn {

// out[M, N] := beta * out + a[M, K] b[K, N]; beta 0 never reads out. Matrices of one dtype and
// device, either stride 1 in a and b. No allocation by libtorch; but for an fp32 `out` of bf16
// matrices (a main gradient) the product is formed in bf16 first, unless try_main_products() has
// found better. Thread-safe.
void product_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta = 0);

// a b in new storage.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
// added + a b in new storage.
at::Tensor add_product(const at::Tensor& added, const at::Tensor& a, const at::Tensor& b);

// Takes a measured choice for all further products of this process, or the rule again (nothing).
// False: it is not taken, since PIPER_PRODUCTS decides. To be called while no other thread computes
// products.
bool choose_products(const std::optional<ProductChoice>& choice);

// What the rule says of every class.
ProductChoice choice_by_rule();

// A product by one library whatever the choice: what is measured to choose. False: not done, the
// build is without oneDNN or the operands are none of its kind. As product_out with beta 0.
bool product_by(ProductLibrary library, const at::Tensor& out, const at::Tensor& a,
                const at::Tensor& b);

// Whether some products go to oneDNN here by the rule or by PIPER_PRODUCTS. PIPER_PRODUCTS is read
// once. Throws InvalidInput for a value that it knows not, or for "onednn" in a build without it.
bool uses_onednn();
// The same for a value of PIPER_PRODUCTS (nullptr: unset).
bool uses_onednn(const char* wanted, bool is_faster_here);

// out := beta * out + a b, out fp32, a and b bf16.
using MainProduct = std::function<void(const at::Tensor& out, const at::Tensor& a,
                                       const at::Tensor& b, double beta)>;
// Whether `product` adds in fp32, without rounding to bf16 before, by a small problem on `device`.
bool adds_unrounded(const at::Device& device, const MainProduct& product);
// Tries on a CUDA device whether libtorch does so in one pass (cuBLAS does), and remembers what it
// found: each device is tried once, and the host waits for it. Thread-safe.
bool try_main_products(const at::Device& device);
// What the trials of the process have found, a line each.
std::vector<std::string> main_products_found();

// What libraries decide or keep at their first call, before ranks compute. Every rank calls it
// first. Thread-safe.
//
// On the CPU: the vector math of MKL, which libtorch has for cos, exp, sqrt and the like, stores
// the processor's type at the first call of a process without a lock, in two steps. A thread that
// reads between them takes kernels of half the accuracy for that call
// (github.com/pytorch/pytorch/issues/188792). One such call, made by one thread while the others
// wait, is the first one.
// On a device: one small product, after which the library has what it keeps for the calling
// thread's stream, in memory of libtorch's allocator.
void open_math_libraries(const at::Device& device);

// One line where the libtorch in use has a oneMKL with that fault, which later ones (2025.0) have
// not; else "".
std::string first_call_note();

}  // namespace piper::nn
