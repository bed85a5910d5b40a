#include <piper/strategy/residual_code.h>

#include <algorithm>

namespace piper::strategy {

int64_t ResidualCode::bytes_of(int64_t elements) const {
  constexpr int64_t kPadded = 8;
  const int64_t bytes = elements / block * kept * (value_bytes + 1);
  return (bytes + kPadded - 1) / kPadded * kPadded;
}

ResidualCode residual_code(const Strategy& s, int64_t elements, int64_t value_bytes) {
  ResidualCode code{.value_bytes = value_bytes};
  if (elements % s.mesh.edp() != 0) return code;
  const int64_t share = elements / s.mesh.edp();
  for (int64_t block = kMostBlock; block >= kLeastBlock && code.block == 0; block /= 2)
    if (share % block == 0) code.block = block;
  code.kept =
      std::max<int64_t>(1, code.block * value_bytes / (s.expert_compression * (value_bytes + 1)));
  return code;
}

}  // namespace piper::strategy
