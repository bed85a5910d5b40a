// The experts of experts.h by libtorch's grouped product, one launch for all of them: on
// accelerators, where the product of one expert's few rows would not fill the device. Rows are
// brought into the order of the experts once, and results back.
//
// It keeps and defers what experts.h does, in the same order, so that either may compute what the
// other has begun. Rows and weights are bf16: libtorch has no such product of fp32. It does not
// compute with copies of experts. Rows behind the last expert's, which Routing::counts_E leaves,
// come out with whatever was in memory: nobody may read them.
#pragma once

#include <piper/cost/grouped_choice.h>
#include <piper/nn/experts.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::nn {

// Tries on `device`, once for it and a type, whether libtorch has a grouped product for them that
// computes right; the host waits. CUDA devices are tried only if their compute capability is 9 or
// 10, which the kernels of cuda/ tell where they are built. Thread-safe.
bool try_grouped_products(const at::Device& device, at::ScalarType dtype);

// What all trials of the process have found, a line each: "cuda:0: experts, BFloat16: one
// product". Thread-safe.
std::vector<std::string> grouped_products_found();

// From now on by this choice; without one all experts are one product. While nothing computes.
void choose_grouped_products(const cost::GroupedChoice& choice);

// Whether these rows are computed by it: there are some, no expert is a copy, rows of the
// matrices are multiples of 16 bytes, the trial went well, and the choice is so. Thread-safe.
bool computes_grouped(const ExpertsBlock& block, const at::Tensor& rows_RD);
// The same of as many rows that will begin aligned.
bool computes_grouped(const ExpertsBlock& block, int64_t num_rows, const at::TensorOptions& rows);

at::Tensor grouped_forward(ExpertsBlock& block, const at::Tensor& received_RD,
                           const Routing& routing, Tape* tape);
at::Tensor grouped_input_backward(const ExpertsBlock& block, const at::Tensor& g_out_RD,
                                  const Routing& routing, Tape& tape, ExpertsDeferred& deferred);
void grouped_weights_backward(ExpertsBlock& block, const at::Tensor& g_out_RD,
                              const at::Tensor& received_RD, const Routing& routing,
                              const ExpertsDeferred& deferred);

}  // namespace piper::nn
