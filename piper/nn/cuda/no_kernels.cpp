// In place of kernels.cu and stream.cpp where these are not built: the kernels compute with no
// tensor, so nobody may call one.
#include <piper/base/error.h>
#include <piper/nn/cuda/instances.h>
#include <piper/nn/cuda/stream.h>

namespace piper::nn::cuda {
namespace {
void missing() { PIPER_CHECK(false, "built without kernels for CUDA"); }
}  // namespace

int compute_capability(int) { return 0; }
bool has_driver() { return false; }
bool computes_with(const at::Tensor&) { return false; }
Place::Place(const at::Tensor& tensor) : device_(tensor.device()), stream_(nullptr) { missing(); }

template <class T>
void rms_norm(Stream, Rows<const T>, const T*, double, Rows<T>) {
  missing();
}
template <class T>
void rms_norm_backward(Stream, Rows<T>, Rows<const T>, const T*, double, Main<T>*, double,
                       Rows<const T>, Main<T>*) {
  missing();
}
template <class T>
void rotate(Stream, Rows<T>, const Main<T>*, const Main<T>*, int64_t, int64_t, Main<T>, bool) {
  missing();
}
template <class T>
void swiglu(Stream, const T*, T*, int64_t, int64_t) {
  missing();
}
template <class T>
void swiglu_backward(Stream, T*, T*, int64_t, int64_t) {
  missing();
}
template <class T>
void gather_rows(Stream, const T*, const int32_t*, T*, int64_t, int64_t) {
  missing();
}
template <class T>
void sum_rows(Stream, const T*, const int32_t*, T*, int64_t, int64_t, int64_t) {
  missing();
}
template <class T>
void add_rows(Stream, Main<T>*, const int64_t*, const int64_t*, const T*, int64_t, int64_t) {
  missing();
}
template <class T>
void merge(Stream, const T*, const Main<T>*, const int32_t*, const T*, T*, int64_t, int64_t,
           int64_t) {
  missing();
}
template <class T>
void merge_backward(Stream, const T*, const T*, const Main<T>*, const int32_t*, T*, Main<T>*,
                    RowRange, int64_t, int64_t, int64_t) {
  missing();
}
template <class T>
void cross_entropy(Stream, T*, const int64_t*, double*, int64_t, int64_t, bool, double) {
  missing();
}
template <class T>
void adamw(Stream, T*, const T*, T*, T*, int64_t, const AdamWScalars<T>&) {
  missing();
}
void adamw_rounded(Stream, float*, const float*, float*, float*, c10::BFloat16*, int64_t,
                   const AdamWScalars<float>&) {
  missing();
}
void sum_of_squares(Stream, const float*, int64_t, double*) { missing(); }
template <class T>
void fill_normal(Stream, T*, int64_t, PartPlaces, uint64_t, uint64_t, double) {
  missing();
}

PIPER_CUDA_INSTANCES

}  // namespace piper::nn::cuda
