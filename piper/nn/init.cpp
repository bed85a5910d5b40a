#include <piper/base/error.h>
#include <piper/base/hash.h>
#include <piper/nn/cuda/stream.h>
#include <piper/nn/init.h>
#include <piper/nn/tensor_ops.h>

#include <algorithm>
#include <vector>

namespace piper::nn {
namespace {

// By a kernel of target's device; false where there is none.
bool fill_on_device(at::Tensor& target, uint64_t seed, uint64_t hashed_name, double range,
                    const std::optional<TensorPart>& part) {
  if (!has_cuda_kernels(target)) return false;
  const at::Tensor values =
      target.is_contiguous() ? target : at::empty_like(target, at::MemoryFormat::Contiguous);
  const PartPlaces places = places_of(part.value_or(whole_tensor({target.numel()})));
  const auto fill = [&]<class T>(T) {
    cuda::fill_normal<T>(cuda::Place(values).stream(), values.data_ptr<T>(), values.numel(), places,
                         seed, hashed_name, range);
  };
  if (target.scalar_type() == at::kBFloat16)
    fill(c10::BFloat16{});
  else if (target.scalar_type() == at::kFloat)
    fill(float{});
  else if (target.scalar_type() == at::kDouble)
    fill(double{});
  else
    return false;
  if (!values.is_same(target)) target.copy_(values);
  return true;
}

}  // namespace

void fill_normal(at::Tensor target, uint64_t seed, std::string_view name, double range,
                 const std::optional<TensorPart>& part) {
  const uint64_t hashed_name = fnv1a64(name);
  const int64_t elements = target.numel();
  PIPER_CHECK(!part || part->num_elements() == elements, "a part of another size");
  if (fill_on_device(target, seed, hashed_name, range, part)) return;
  const std::vector<Run> runs = part ? runs_of(*part) : std::vector<Run>{{.count = elements}};
  const at::Tensor values = at::empty({elements}, at::kDouble);
  double* out = values.data_ptr<double>();
  for (const Run& run : runs) {
    const int64_t end = run.whole + run.count;
    for (int64_t pair = run.whole / 2; 2 * pair < end; ++pair) {
      const auto normals = normal_pair(seed, hashed_name, static_cast<uint64_t>(pair));
      for (int64_t i = std::max(run.whole, 2 * pair); i < std::min(end, 2 * pair + 2); ++i)
        out[run.part + i - run.whole] = range * normals[static_cast<size_t>(i % 2)];
    }
  }
  target.copy_(values.view(target.sizes()));
}

}  // namespace piper::nn
