#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/nn/named_tensor.h>

#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace piper::nn {

TensorPart part_of(const NamedTensor& tensor) {
  return tensor.part ? *tensor.part : whole_tensor(tensor.value.sizes().vec());
}

NamedTensor in_file(NamedTensor tensor) {
  if (tensor.part && !tensor.part->is_whole()) tensor.name += " " + text(*tensor.part);
  tensor.part.reset();
  return tensor;
}

NameInFile name_in_file(const std::string& name, const std::vector<int64_t>& shape) {
  const size_t blank = name.find(' ');
  if (blank == std::string::npos) return {name, whole_tensor(shape)};
  TensorPart part = parse_part(name.substr(blank + 1));
  if (part.num_elements() !=
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()))
    throw InvalidInput(fmt::format("tensor '{}' has another number of elements", name));
  return {name.substr(0, blank), std::move(part)};
}

std::vector<NamedTensor> put_together(const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> whole;
  std::map<std::string, size_t> places;
  std::set<std::string> seen;
  std::map<std::string, int64_t> missing;  // elements
  for (const NamedTensor& tensor : tensors) {
    if (!seen.insert(tensor.name).second) continue;
    const NameInFile in = name_in_file(tensor.name, tensor.value.sizes().vec());
    const auto [place, is_new] = places.try_emplace(in.name, whole.size());
    if (in.part.is_whole()) {
      if (is_new) whole.push_back({in.name, tensor.value});
      continue;
    }
    if (is_new) {
      whole.push_back({in.name, at::empty(in.part.shape, tensor.value.options())});
      missing[in.name] = whole.back().value.numel();
    }
    const at::Tensor to = whole[place->second].value.view({-1}),
                     from = tensor.value.contiguous().view({-1});
    for (const Run& run : runs_of(in.part))
      to.narrow(0, run.whole, run.count).copy_(from.narrow(0, run.part, run.count));
    missing[in.name] -= in.part.num_elements();
  }
  std::vector<std::string> problems;
  for (const auto& [name, elements] : missing)
    if (elements != 0)
      problems.push_back(fmt::format("tensor '{}' lacks {} elements", name, elements));
  if (!problems.empty()) throw InvalidInput(std::move(problems));
  return whole;
}

}  // namespace piper::nn
