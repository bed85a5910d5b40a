// A tensor under the name by which files know it.
#pragma once

#include <piper/nn/aten.h>
#include <piper/nn/tensor_part.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::nn {

struct NamedTensor {
  std::string name;
  at::Tensor value;  // shares storage with its owner: written out from it, read back into it
  std::optional<TensorPart> part = {};  // what of the named tensor it is; none: all of it
};

// What of the whole tensor it is.
TensorPart part_of(const NamedTensor& tensor);

// As a file holds it: a part has the whole's name, a blank and what it is (text()); no part.
NamedTensor in_file(NamedTensor tensor);

// The whole's name and the part, of a name in a file and the shape there. Throws InvalidInput when
// what stands behind the blank is no part, or one of another size.
struct NameInFile {
  std::string name;
  TensorPart part;
};
NameInFile name_in_file(const std::string& name, const std::vector<int64_t>& shape);

// Whole tensors from tensors as files hold them (in_file()), which may be parts, in the order of
// their first; replicas are dropped. Throws InvalidInput with every tensor of which a part is
// missing.
std::vector<NamedTensor> put_together(const std::vector<NamedTensor>& tensors);

}  // namespace piper::nn
