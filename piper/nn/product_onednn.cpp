// libtorch holds a oneDNN of its own, and both libraries export their insides under the same names:
// linked side by side, whichever comes first answers for both, and then products are refused
// (dnnl_unimplemented) or, worse, run half in one version and half in the other. So the library is
// loaded apart: its names are seen by nobody (RTLD_LOCAL) and it sees its own first
// (RTLD_DEEPBIND).
#include <dlfcn.h>
#include <piper/nn/product_onednn.h>

// Sanitizers forbid RTLD_DEEPBIND, and not every C library has it.
#if defined(PIPER_ONEDNN_LIBRARY) && defined(RTLD_DEEPBIND) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define PIPER_HAS_ONEDNN
#include <dnnl.h>
#endif

namespace piper::nn {

#ifdef PIPER_HAS_ONEDNN

namespace {

using Sgemm = decltype(&dnnl_sgemm);

// nullptr where the library is gone since the build.
Sgemm loaded_sgemm() {
  static const Sgemm sgemm = [] {
    void* library = ::dlopen(PIPER_ONEDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    return library == nullptr ? nullptr : reinterpret_cast<Sgemm>(::dlsym(library, "dnnl_sgemm"));
  }();
  return sgemm;
}

}  // namespace

bool has_onednn() { return loaded_sgemm() != nullptr; }

bool onednn_product(const OnednnProduct& p) {
  const Sgemm sgemm = loaded_sgemm();
  return sgemm != nullptr &&
         sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0F, p.a,
               p.lda, p.b, p.ldb, p.beta, p.c, p.ldc) == dnnl_success;
}

#else

bool has_onednn() { return false; }
bool onednn_product(const OnednnProduct&) { return false; }

#endif

}  // namespace piper::nn
