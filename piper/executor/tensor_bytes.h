// Tensors as comm/ sees them: bytes, elements, and scratch that is counted with the tensors.
#pragma once

#include <piper/comm/operations.h>
#include <piper/nn/aten.h>
#include <piper/strategy/strategy.h>

#include <cstddef>
#include <memory>
#include <span>

namespace piper::executor {

// These return the bytes of a contiguous tensor. If it is on a device they are addresses alone,
// which the host must not read.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);
std::span<std::byte> mutable_bytes_of(const at::Tensor& tensor);

// kFp32 becomes at::kFloat, and so on. Requires fp64, fp32 or bf16, which are computed in
// (PIPER_CHECK).
at::ScalarType scalar_type(strategy::Precision precision);

// The tensor is fp64, fp32 or bf16, or holds codes of two bytes, which travel as bf16 does and are
// never added (PIPER_CHECK of the size).
comm::Element element_of(const at::Tensor& tensor);

// For comm::Allocate: memory of the CPU, or of a device in the current stream.
std::shared_ptr<std::byte> tensor_scratch(size_t bytes);
std::shared_ptr<std::byte> tensor_scratch_on(at::Device device, size_t bytes);

}  // namespace piper::executor
