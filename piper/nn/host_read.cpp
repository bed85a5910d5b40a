#include <piper/base/error.h>
#include <piper/nn/host_read.h>

namespace piper::nn {
namespace {

thread_local int64_t waits = 0;

}  // namespace

int64_t num_host_waits() { return waits; }
void count_host_wait() { ++waits; }

at::Tensor read_on_host(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor.contiguous();
  count_host_wait();
  return tensor.contiguous().to(at::kCPU);
}

at::Tensor put_on_device(const at::Tensor& tensor, const at::Device& device) {
  PIPER_CHECK(tensor.is_cpu(), "a tensor that is not the host's");
  if (device.is_cpu()) return tensor;
  at::Tensor from = tensor;
  if (!device.is_cuda() || !tensor.is_pinned()) {
    from = at::empty(tensor.sizes(), tensor.options().pinned_memory(device.is_cuda()));
    from.copy_(tensor);
  }
  return from.to(device, /*non_blocking=*/true);
}

Amount::Amount(const at::Tensor& value) {
  if (value.device().is_cpu())
    here_ = value.item<double>();
  else
    there_ = value.to(at::kDouble);
}

Amount& Amount::operator+=(const Amount& other) {
  here_ += other.here_;
  if (other.there_.defined()) there_ = there_.defined() ? there_ + other.there_ : other.there_;
  return *this;
}

Amount Amount::operator*(double factor) const {
  Amount product(here_ * factor);
  if (there_.defined()) product.there_ = there_ * factor;
  return product;
}

Amount Amount::operator/(double divisor) const {
  Amount quotient(here_ / divisor);
  if (there_.defined()) quotient.there_ = there_ / divisor;
  return quotient;
}

double Amount::read() const {
  return there_.defined() ? here_ + read_on_host(there_).item<double>() : here_;
}

std::vector<double> read_all(const std::vector<Amount>& amounts) { return read_all(amounts, {}); }

std::vector<double> read_all(const std::vector<Amount>& amounts,
                             const std::vector<at::Tensor>& further) {
  std::vector<double> values;
  std::vector<at::Tensor> there;
  for (const Amount& amount : amounts) {
    values.push_back(amount.here());
    if (amount.there().defined()) there.push_back(amount.there().reshape({1}));
  }
  for (const at::Tensor& tensor : further) there.push_back(tensor.reshape({-1}).to(at::kDouble));
  if (there.empty()) return values;
  const at::Tensor read = read_on_host(at::cat(there));
  const auto* next = read.const_data_ptr<double>();
  for (size_t i = 0; i < amounts.size(); ++i)
    if (amounts[i].there().defined()) values[i] += *next++;
  values.insert(values.end(), next, read.const_data_ptr<double>() + read.numel());
  return values;
}

}  // namespace piper::nn
