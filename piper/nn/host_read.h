// The one way in which the host reads what a device has computed, for which it waits for the
// calling thread's stream, and the one in which it hands over what it has made itself, for which it
// does not. On the CPU nothing waits and nothing is copied.
#pragma once

#include <piper/nn/aten.h>

#include <cstdint>
#include <vector>

namespace piper::nn {

// Waits that the calling thread has made so far: one a call of read_on_host() on a device, and
// those that others have counted here.
int64_t num_host_waits();
void count_host_wait();

// The tensor in the host's memory, contiguous.
at::Tensor read_on_host(const at::Tensor& tensor);

// A tensor of the host's (PIPER_CHECK) in the device's memory, in the order of the calling thread's
// stream; on the CPU the tensor itself. CUDA's own copy of memory that is not pinned makes the host
// wait for the stream, so this one goes through pinned memory; who gives a pinned tensor does not
// change it before the stream is through. Thread-safe.
at::Tensor put_on_device(const at::Tensor& tensor, const at::Device& device);

// A number that a step adds up: on the CPU at once, on a device in its memory, so that nobody waits
// for a loss before the step's end.
class Amount {
 public:
  Amount() = default;
  Amount(double value) : here_(value) {}  // NOLINT(google-explicit-constructor)
  // The tensor has one element.
  explicit Amount(const at::Tensor& value);

  Amount& operator+=(const Amount& other);
  Amount operator*(double factor) const;
  Amount operator/(double divisor) const;
  // What is on the host, and what is not: undefined, or one fp64 element.
  double here() const { return here_; }
  const at::Tensor& there() const { return there_; }
  // Waits where a part of it is on a device.
  double read() const;

 private:
  double here_ = 0;
  at::Tensor there_;
};

// All of them with one wait at most.
std::vector<double> read_all(const std::vector<Amount>& amounts);
// The same, and behind them every element of `further`, which is on a device or empty.
std::vector<double> read_all(const std::vector<Amount>& amounts,
                             const std::vector<at::Tensor>& further);

}  // namespace piper::nn
