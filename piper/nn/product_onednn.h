// oneDNN behind plain pointers; without it at build time, both functions answer false.
#pragma once

#include <cstdint>

namespace piper::nn {

// c[m, n] := beta * c + op(a) op(b), row-major, leading dimensions in elements (BLAS's sgemm with
// rows for columns).
struct OnednnProduct {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  int64_t lda = 0;
  const float* b = nullptr;
  int64_t ldb = 0;
  float beta = 0;
  float* c = nullptr;
  int64_t ldc = 0;
};

// oneDNN was there when Piper was built, and is there now.
bool has_onednn();
// False: not done (nothing was written). Thread-safe; on the calling thread alone when OpenMP has
// one thread there.
bool onednn_product(const OnednnProduct& product);

}  // namespace piper::nn
