// A tensor under the name by which files know it.
#pragma once

#include <piper/nn/aten.h>

#include <string>
#include <vector>

namespace piper::train {

struct NamedTensor {
  std::string name;
  at::Tensor value;  // shares storage with its owner: written out from it, read back into it
};

}  // namespace piper::train
