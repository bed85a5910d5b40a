#include <piper/nn/product_onednn.h>

#ifdef PIPER_HAS_ONEDNN
#include <dnnl.h>
#endif

namespace piper::nn {

#ifdef PIPER_HAS_ONEDNN

bool onednn_is_faster_here() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

bool onednn_product(const OnednnProduct& p) {
  return dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0F, p.a,
                    p.lda, p.b, p.ldb, p.beta, p.c, p.ldc) == dnnl_success;
}

#else

bool onednn_is_faster_here() { return false; }
bool onednn_product(const OnednnProduct&) { return false; }

#endif

}  // namespace piper::nn
