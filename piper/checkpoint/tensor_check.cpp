#include <fmt/format.h>
#include <piper/checkpoint/tensor_check.h>

#include <array>
#include <cstring>

namespace piper::checkpoint {
namespace {

// Multiplying by an odd number and xor-ing a word are both one-to-one, so two contents that differ
// in one word of a lane never meet again.
uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

}  // namespace

uint64_t tensor_hash(const at::Tensor& value) {
  const at::Tensor here = value.cpu().contiguous();
  const auto* bytes = static_cast<const char*>(here.const_data_ptr());
  const auto size = static_cast<size_t>(here.nbytes());
  std::array<uint64_t, 4> lanes = {1, 2, 3, 4};
  uint64_t words[4];
  size_t at = 0;
  for (; at + sizeof words <= size; at += sizeof words) {
    std::memcpy(words, bytes + at, sizeof words);
    for (size_t lane = 0; lane < 4; ++lane) lanes[lane] = mixed(lanes[lane], words[lane]);
  }
  std::memset(words, 0, sizeof words);
  if (at < size) std::memcpy(words, bytes + at, size - at);
  for (size_t lane = 0; lane < 4; ++lane) lanes[lane] = mixed(lanes[lane], words[lane]);
  uint64_t hash = size;
  for (const uint64_t lane : lanes) hash = mixed(hash, lane);
  return hash;
}

std::string tensor_hash_text(const at::Tensor& value) {
  return fmt::format("{:016x}", tensor_hash(value));
}

bool all_finite(const at::Tensor& value) {
  return !value.is_floating_point() || at::isfinite(value).all().item<bool>();
}

std::string first_not_finite(const std::vector<nn::NamedTensor>& tensors) {
  for (const nn::NamedTensor& tensor : tensors)
    if (!all_finite(tensor.value)) return tensor.name;
  return "";
}

}  // namespace piper::checkpoint
