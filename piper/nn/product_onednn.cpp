#include <piper/nn/product_onednn.h>

#ifdef PIPER_HAS_ONEDNN
#include <dnnl.h>
#endif

namespace piper::nn {

#ifdef PIPER_HAS_ONEDNN

bool has_onednn() { return true; }

bool onednn_product(const OnednnProduct& p) {
  return dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0F, p.a,
                    p.lda, p.b, p.ldb, p.beta, p.c, p.ldc) == dnnl_success;
}

#else

bool has_onednn() { return false; }
bool onednn_product(const OnednnProduct&) { return false; }

#endif

}  // namespace piper::nn
