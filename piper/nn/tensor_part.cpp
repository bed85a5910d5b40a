#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/nn/tensor_part.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace piper::nn {
namespace {

int64_t product(const std::vector<int64_t>& shape, size_t from, size_t until) {
  int64_t elements = 1;
  for (size_t i = from; i < until; ++i) elements *= shape[i];
  return elements;
}

// Elements behind one index of `dim`.
int64_t inner(const TensorPart& part) {
  return product(part.shape, static_cast<size_t>(part.dim) + 1, part.shape.size());
}

int64_t all_along(const TensorPart& part) {
  return product(part.shape, 0, static_cast<size_t>(part.dim)) * part.count * inner(part);
}

// Reads what text() writes, from the left.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), left_(text) {}
  bool take(std::string_view word) {
    if (!left_.starts_with(word)) return false;
    left_.remove_prefix(word.size());
    return true;
  }
  void require(std::string_view word) {
    if (!take(word)) refuse();
  }
  int64_t number() {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), value);
    if (error != std::errc() || value < 0 || value > int64_t{1} << 48) refuse();
    left_.remove_prefix(static_cast<size_t>(end - left_.data()));
    return value;
  }
  bool at_end() const { return left_.empty(); }
  [[noreturn]] void refuse() const {
    throw InvalidInput(fmt::format(
        "'{}' is no part of a tensor; allowed: \"[rows,columns] dimension:first-last elements "
        "first-last\"",
        text_));
  }

 private:
  std::string_view text_, left_;
};

}  // namespace

bool TensorPart::has_all_along() const { return begin == 0 && end == all_along(*this); }

bool TensorPart::is_whole() const { return num_elements() == product(shape, 0, shape.size()); }

TensorPart whole_tensor(std::vector<int64_t> shape) {
  const int64_t count = shape.empty() ? 1 : shape.front();
  const int64_t elements = product(shape, 0, shape.size());
  return {.shape = std::move(shape), .count = count, .end = elements};
}

TensorPart part_along(std::vector<int64_t> shape, int64_t dim, int64_t first, int64_t count) {
  PIPER_CHECK(dim >= 0 && dim < std::ssize(shape) && first >= 0 && count >= 0 &&
                  first + count <= shape[static_cast<size_t>(dim)],
              "a part outside its tensor");
  TensorPart part{.shape = std::move(shape), .dim = dim, .first = first, .count = count};
  part.end = all_along(part);
  return part;
}

TensorPart elements_of(const TensorPart& part, int64_t begin, int64_t end) {
  PIPER_CHECK(begin >= 0 && begin <= end && end <= part.num_elements(),
              "elements outside their part");
  TensorPart of = part;
  of.begin = part.begin + begin;
  of.end = part.begin + end;
  return of;
}

PartPlaces places_of(const TensorPart& part) {
  if (part.shape.empty()) return {};  // one number
  const int64_t behind = inner(part);
  return {.begin = part.begin,
          .run = std::max<int64_t>(1, part.count * behind),
          .stride = part.shape[static_cast<size_t>(part.dim)] * behind,
          .first = part.first * behind};
}

std::vector<Run> runs_of(const TensorPart& part) {
  std::vector<Run> runs;
  const PartPlaces places = places_of(part);
  for (int64_t from = part.begin, until = 0; from < part.end; from = until) {
    until = std::min(part.end, (from / places.run + 1) * places.run);
    const int64_t first = from - part.begin;
    const Run run{places.of(first), first, until - from};
    if (!runs.empty() && runs.back().whole + runs.back().count == run.whole)
      runs.back().count += run.count;
    else
      runs.push_back(run);
  }
  return runs;
}

std::vector<Overlap> overlaps(const TensorPart& one, const TensorPart& other) {
  PIPER_CHECK(one.shape == other.shape, "parts of different tensors");
  std::vector<Overlap> common;
  const std::vector<Run> left = runs_of(one), right = runs_of(other);
  for (size_t i = 0, j = 0; i < left.size() && j < right.size();) {
    const Run &a = left[i], &b = right[j];
    const int64_t from = std::max(a.whole, b.whole),
                  until = std::min(a.whole + a.count, b.whole + b.count);
    if (from < until)
      common.push_back({a.part + from - a.whole, b.part + from - b.whole, until - from});
    ++(a.whole + a.count < b.whole + b.count ? i : j);
  }
  return common;
}

std::string text(const TensorPart& part) {
  std::string line = fmt::format("[{}]", fmt::join(part.shape, ","));
  if (part.is_whole()) return line;
  line += fmt::format(" {}:{}-{}", part.dim, part.first, part.first + part.count);
  if (!part.has_all_along()) line += fmt::format(" elements {}-{}", part.begin, part.end);
  return line;
}

TensorPart parse_part(const std::string& line) {
  Parser parser(line);
  std::vector<int64_t> shape;
  parser.require("[");
  while (!parser.take("]")) {
    if (!shape.empty()) parser.require(",");
    shape.push_back(parser.number());
  }
  if (parser.at_end()) return whole_tensor(std::move(shape));
  parser.require(" ");
  const int64_t dim = parser.number();
  parser.require(":");
  const int64_t first = parser.number();
  parser.require("-");
  const int64_t last = parser.number();
  if (dim >= std::ssize(shape) || first > last || last > shape[static_cast<size_t>(dim)])
    parser.refuse();
  TensorPart part = part_along(std::move(shape), dim, first, last - first);
  if (!parser.at_end()) {
    parser.require(" elements ");
    const int64_t begin = parser.number();
    parser.require("-");
    const int64_t end = parser.number();
    if (begin > end || end > part.num_elements() || !parser.at_end()) parser.refuse();
    part = elements_of(part, begin, end);
  }
  return part;
}

}  // namespace piper::nn
