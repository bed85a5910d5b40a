#include <doctest/doctest.h>
#include <piper/comm/element.h>
#include <piper/executor/tensor_device_operations.h>

#include <cstring>
#include <random>

namespace piper::executor {
namespace {

using collective::RowPair;
using comm::Element;

constexpr Element kElements[] = {Element::kFloat32, Element::kFloat64, Element::kInt64,
                                 Element::kBFloat16};

// Numbers of the element, small enough for its sums.
std::vector<std::byte> numbers(Element element, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count * comm::size_of(element));
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(random() % 100000) / 7;
    const double wide = value;
    const auto whole = static_cast<int64_t>(random());
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    const auto half = static_cast<uint16_t>(bits >> 16);
    const void* source = element == Element::kFloat32   ? static_cast<const void*>(&value)
                         : element == Element::kFloat64 ? static_cast<const void*>(&wide)
                         : element == Element::kInt64   ? static_cast<const void*>(&whole)
                                                        : static_cast<const void*>(&half);
    std::memcpy(bytes.data() + i * comm::size_of(element), source, comm::size_of(element));
  }
  return bytes;
}

TEST_CASE("additions by libtorch are those on plain buffers, to the bit, for every element") {
  const auto operations = make_tensor_device_operations(at::kCPU);
  for (const Element element : kElements) {
    const auto source = numbers(element, 1000, 1);
    std::vector<std::byte> target = numbers(element, 1000, 2), expected = target;
    operations->add(element, target.data(), source.data(), 1000, nullptr);
    comm::add(element, expected, source);
    CAPTURE(static_cast<int>(element));
    CHECK((target == expected));  // bytes cannot be printed
  }
}

// Row by row on plain buffers.
void move_plainly(const std::vector<RowPair>& pairs, bool adds, Element element, int64_t bytes,
                  std::vector<std::byte>& target, const std::vector<std::byte>& source) {
  for (const RowPair& pair : pairs) {
    const auto into = std::span(target).subspan(pair.to * bytes, bytes);
    const auto from = std::span(source).subspan(pair.from * bytes, bytes);
    if (adds)
      comm::add(element, into, from);
    else
      std::memcpy(into.data(), from.data(), bytes);
  }
}

TEST_CASE(
    "rows moved by libtorch are those on plain buffers: in order, scattered, repeated, added") {
  const auto operations = make_tensor_device_operations(at::kCPU);
  const std::vector<std::vector<RowPair>> lists{
      {{3, 0}, {1, 1}, {1, 2}, {7, 3}}, {{0, 5}, {2, 6}}, {{4, 9}, {4, 1}, {0, 3}}, {{6, 2}}};
  for (const Element element : kElements)
    for (const int64_t columns : {1, 3, 16})
      for (const bool adds : {false, true})
        for (const auto& pairs : lists) {
          const int64_t bytes = columns * comm::size_of(element);
          const auto source = numbers(element, 10 * columns, 3);
          std::vector<std::byte> target = numbers(element, 10 * columns, 4), expected = target;
          const auto rows = operations->prepare_rows(pairs, adds, element, bytes);
          for (int round = 0; round < 2; ++round) {
            rows->move(target.data(), source.data(), nullptr);
            move_plainly(pairs, adds, element, bytes, expected, source);
          }
          CAPTURE(static_cast<int>(element));
          CAPTURE(columns);
          CAPTURE(adds);
          CHECK((target == expected));  // bytes cannot be printed
        }
}

TEST_CASE("rows of an odd number of bytes are copied, too") {
  const auto operations = make_tensor_device_operations(at::kCPU);
  const std::vector<RowPair> pairs{{2, 1}, {0, 0}};
  for (const int64_t bytes : {1, 2, 3, 6, 12}) {
    const auto source = numbers(Element::kFloat32, 3 * bytes, 5);
    std::vector<std::byte> target(3 * bytes), expected = target;
    operations->prepare_rows(pairs, false, Element::kInt64, bytes)
        ->move(target.data(), source.data(), nullptr);
    move_plainly(pairs, false, Element::kInt64, bytes, expected, source);
    CHECK((target == expected));  // bytes cannot be printed
  }
}

}  // namespace
}  // namespace piper::executor
