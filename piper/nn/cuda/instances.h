// The functions of kernels.h by type: what kernels.cu and no_kernels.cpp each define.
#pragma once

#include <piper/nn/cuda/kernels.h>

#include <cstdint>

#define PIPER_CUDA_INSTANCES_OF(T)                                                                 \
  template void rms_norm(Stream, Rows<const T>, const T*, double, Rows<T>);                        \
  template void rms_norm_backward(Stream, Rows<T>, Rows<const T>, const T*, double, Main<T>*,      \
                                  double, Rows<const T>, Main<T>*);                                \
  template void rotate(Stream, Rows<T>, const Main<T>*, const Main<T>*, int64_t, int64_t, Main<T>, \
                       bool);                                                                      \
  template void swiglu(Stream, const T*, T*, int64_t, int64_t);                                    \
  template void swiglu_backward(Stream, T*, T*, int64_t, int64_t);                                 \
  template void gather_rows(Stream, const T*, const int32_t*, T*, int64_t, int64_t);               \
  template void sum_rows(Stream, const T*, const int32_t*, T*, int64_t, int64_t, int64_t);         \
  template void add_rows(Stream, Main<T>*, const int64_t*, const int64_t*, const T*, int64_t,      \
                         int64_t);                                                                 \
  template void merge(Stream, const T*, const Main<T>*, const int32_t*, const T*, T*, int64_t,     \
                      int64_t, int64_t);                                                           \
  template void merge_backward(Stream, const T*, const T*, const Main<T>*, const int32_t*, T*,     \
                               Main<T>*, RowRange, int64_t, int64_t, int64_t);                     \
  template void cross_entropy(Stream, T*, const int64_t*, double*, int64_t, int64_t, bool,         \
                              double);                                                             \
  template void fill_normal(Stream, T*, int64_t, PartPlaces, uint64_t, uint64_t, double);
#define PIPER_CUDA_INSTANCES                                                     \
  PIPER_CUDA_INSTANCES_OF(float)                                                 \
  PIPER_CUDA_INSTANCES_OF(double)                                                \
  PIPER_CUDA_INSTANCES_OF(c10::BFloat16)                                         \
  template void adamw(Stream, float*, const float*, float*, float*, int64_t,     \
                      const AdamWScalars<float>&);                               \
  template void adamw(Stream, double*, const double*, double*, double*, int64_t, \
                      const AdamWScalars<double>&);
