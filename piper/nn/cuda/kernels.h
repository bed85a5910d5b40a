// kernels.h of the folder above for CUDA devices: the same functions on device memory, behind a
// stream. Built where there are a CUDA compiler and a libtorch for CUDA; elsewhere no_kernels.cpp
// takes their place, and tensors on a device are computed with by compositions of at:: calls
// (tensor_ops_any_device.cpp).
//
// Bound by memory: what is read again (a row by the norm, logits) is in a cache by then. No atomic
// addition: the same inputs give the same bits. All return at once; what they were given must stay
// until the stream has come past them. Throws std::runtime_error with CUDA's words when a launch
// fails.
#pragma once

#include <piper/nn/kernels.h>
#include <piper/nn/tensor_part.h>

#include <cstdint>

namespace piper::nn::cuda {

// Returns the compute capability of the device of this number, as 90 for 9.0; 0 where there is
// none, or no kernels were built.
int compute_capability(int device);
// Whether the driver is new enough for the runtime that the kernels were built with, and has a
// device. Thread-safe.
bool has_driver();

using Stream = void*;  // a cudaStream_t
using kernels::AdamWScalars;
using kernels::Main;
using kernels::RowRange;
using kernels::Rows;

template <class T>
void rms_norm(Stream stream, Rows<const T> x, const T* weight, double epsilon, Rows<T> y);
// Rows are summed in strips of their own first: `strips` has room for [kNormStrips, width]; null
// without a weight_gradient. For widths up to kNormBackwardWidth.
inline constexpr int64_t kNormStrips = 512, kNormBackwardWidth = 8192;
template <class T>
void rms_norm_backward(Stream stream, Rows<T> g, Rows<const T> x, const T* weight, double epsilon,
                       Main<T>* weight_gradient, double beta, Rows<const T> residual,
                       Main<T>* strips);
template <class T>
void rotate(Stream stream, Rows<T> x, const Main<T>* cosine, const Main<T>* sine, int64_t sequence,
            int64_t half, Main<T> direction, bool interleaved);
template <class T>
void swiglu(Stream stream, const T* h, T* act, int64_t n, int64_t ffn);
template <class T>
void swiglu_backward(Stream stream, T* h, T* g_act, int64_t n, int64_t ffn);
template <class T>
void gather_rows(Stream stream, const T* x, const int32_t* index, T* out, int64_t n, int64_t width);
template <class T>
void sum_rows(Stream stream, const T* rows, const int32_t* position, T* out, int64_t tokens,
              int64_t k, int64_t width);
// `sorted`: the indices in ascending order, equal ones as they were; `order`: which row each is of.
template <class T>
void add_rows(Stream stream, Main<T>* table, const int64_t* sorted, const int64_t* order,
              const T* rows, int64_t n, int64_t width);
template <class T>
void merge(Stream stream, const T* returned, const Main<T>* weights, const int32_t* position,
           const T* x1, T* out, int64_t tokens, int64_t k, int64_t width);
template <class T>
void merge_backward(Stream stream, const T* gx, const T* returned, const Main<T>* weights,
                    const int32_t* position, T* g_returned, Main<T>* g_weights, RowRange own,
                    int64_t tokens, int64_t k, int64_t width);
// losses: [n], of each row.
template <class T>
void cross_entropy(Stream stream, T* logits, const int64_t* target, double* losses, int64_t n,
                   int64_t vocabulary, bool gradient, double scale);
template <class T>
void adamw(Stream stream, T* w, const T* gradient, T* m, T* v, int64_t n,
           const AdamWScalars<T>& scalars);
void adamw_rounded(Stream stream, float* w, const float* gradient, float* m, float* v,
                   c10::BFloat16* rounded, int64_t n, const AdamWScalars<float>& scalars);

// parts[p] := the sum of squares of a part of x's n elements, added in fp64; all parts make up x.
inline constexpr int64_t kSquareParts = 1024;
void sum_of_squares(Stream stream, const float* x, int64_t n, double* parts);
// target[i], i < count, := the element of a tensor of normals that lies at places.of(i) (init.h).
template <class T>
void fill_normal(Stream stream, T* target, int64_t count, PartPlaces places, uint64_t seed,
                 uint64_t hashed_name, double range);

}  // namespace piper::nn::cuda
