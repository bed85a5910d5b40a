// Two questions about a tensor: are its bytes what they were, and are its elements finite.
#pragma once

#include <piper/nn/named_tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::checkpoint {

// A hash of a tensor's elements in order, that any single flipped bit changes. It is not
// cryptographic: two contents with the same hash are easy to make. A run's processes and
// checkpoints compare it, so it may not change from version to version.
uint64_t tensor_hash(const at::Tensor& value);
std::string tensor_hash_text(const at::Tensor& value);  // 16 hexadecimal digits

// Whether no element is infinite or NaN; true for integers. Any floating type.
bool all_finite(const at::Tensor& value);

// The name of the first tensor that is not all_finite(); "" = all are.
std::string first_not_finite(const std::vector<nn::NamedTensor>& tensors);

}  // namespace piper::checkpoint
