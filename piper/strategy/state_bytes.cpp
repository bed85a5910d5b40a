#include <piper/strategy/state_bytes.h>

namespace piper::strategy {

StateBytes state_bytes(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return {4, 4, 8};
    case Precision::kBf16:
    case Precision::kFp8:
    case Precision::kMxfp8:
    case Precision::kNvfp4:
    case Precision::kFp16:
      return {2, 4, 12};
    case Precision::kFp64:
      return {8, 8, 16};
  }
  return {};
}

int64_t element_bytes(Precision precision) { return state_bytes(precision).weight; }

}  // namespace piper::strategy
