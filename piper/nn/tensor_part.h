// Which elements of a whole tensor a rank holds. A Hugging Face name stands for the whole tensor;
// ranks that divide it hold a part each: a range along one dimension (the heads of a projection,
// the columns of an output matrix), and of that perhaps only a range of its elements (the share of
// an optimizer's states).
//
//   whole [4, 6], dim 1, first 2, count 3          . . x x x .
//   (12 elements, of which begin 2, end 7           . . x x x .      the elements 2 .. 6 of these
//    are the last of the first row, the             . . x x x .      are five of the twelve
//    second row and the first of the third)         . . x x x .
#pragma once

#include <piper/nn/cuda/host_device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::nn {

// A value. Elements are counted in row-major order.
struct TensorPart {
  std::vector<int64_t> shape;             // of the whole
  int64_t dim = 0, first = 0, count = 0;  // [first, first + count) along dim
  int64_t begin = 0, end = 0;             // of the elements of that: [begin, end)

  bool is_whole() const;       // nothing is cut away
  bool has_all_along() const;  // no element of [first, first + count) is cut away
  int64_t num_elements() const { return end - begin; }
  bool operator==(const TensorPart&) const = default;
};

// All of a tensor.
TensorPart whole_tensor(std::vector<int64_t> shape);
// [first, first + count) along dim of a tensor of this shape. Requires that it is there
// (PIPER_CHECK).
TensorPart part_along(std::vector<int64_t> shape, int64_t dim, int64_t first, int64_t count);
// Returns elements [begin, end) of a part, counted from the part's own first.
TensorPart elements_of(const TensorPart& part, int64_t begin, int64_t end);

// Elements that lie together in the whole and in the part.
struct Run {
  int64_t whole = 0;  // index of the first in the whole
  int64_t part = 0;   // and in the part
  int64_t count = 0;
};
// By ascending index; as few as there can be.
std::vector<Run> runs_of(const TensorPart& part);
// The same as a formula: element i of the part is element of(i) of the whole. `run` elements of all
// along the dimension lie together, `stride` apart.
struct PartPlaces {
  int64_t begin = 0, run = 1, stride = 1, first = 0;
  PIPER_EVERYWHERE int64_t of(int64_t element) const {
    const int64_t i = begin + element;
    return i / run * stride + first + i % run;
  }
};
PartPlaces places_of(const TensorPart& part);

// What two parts of one tensor have in common: where it lies in the one and in the other.
struct Overlap {
  int64_t one = 0, other = 0, count = 0;
};
std::vector<Overlap> overlaps(const TensorPart& one, const TensorPart& other);

// "[4,6]", "[4,6] 1:2-5", "[4,6] 1:2-5 elements 2-7": what stands behind the name of a tensor of
// which a file holds a part. parse_part() reads it back; throws InvalidInput for anything else.
std::string text(const TensorPart& part);
TensorPart parse_part(const std::string& text);

}  // namespace piper::nn
