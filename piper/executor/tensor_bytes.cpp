#include <piper/base/error.h>
#include <piper/executor/tensor_bytes.h>

namespace piper::executor {

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  PIPER_DCHECK(tensor.is_contiguous());
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::span<std::byte> mutable_bytes_of(const at::Tensor& tensor) {
  PIPER_DCHECK(tensor.is_contiguous());
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

at::ScalarType scalar_type(strategy::Precision precision) {
  switch (precision) {
    case strategy::Precision::kFp32:
      return at::kFloat;
    case strategy::Precision::kBf16:
      return at::kBFloat16;
    case strategy::Precision::kFp64:
      return at::kDouble;
    case strategy::Precision::kFp8:
    case strategy::Precision::kMxfp8:
    case strategy::Precision::kNvfp4:
    case strategy::Precision::kFp16:
      break;
  }
  PIPER_CHECK(false, "precision");
  return at::kFloat;
}

comm::Element element_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kDouble) return comm::Element::kFloat64;
  if (tensor.scalar_type() == at::kFloat) return comm::Element::kFloat32;
  PIPER_CHECK(tensor.element_size() == 2, "neither bf16 nor a code of two bytes");
  return comm::Element::kBFloat16;
}

std::shared_ptr<std::byte> tensor_scratch(size_t bytes) {
  return tensor_scratch_on(at::kCPU, bytes);
}

std::shared_ptr<std::byte> tensor_scratch_on(at::Device device, size_t bytes) {
  const at::Tensor tensor =
      at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(device));
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), [tensor](std::byte*) {}};
}

}  // namespace piper::executor
