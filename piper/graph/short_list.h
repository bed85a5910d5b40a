// A list that is nearly always short: six entries in place, more on the heap. Writers make one per
// list of a task, millions of times; with std::vector the allocations were most of the time that
// writing a graph took.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace piper::graph {

// T is trivially copyable and default-constructible. Not thread-safe.
template <class T>
class ShortList {
 public:
  ShortList() = default;
  ShortList(std::initializer_list<T> values) {
    for (const T& value : values) push_back(value);
  }
  ShortList(std::span<const T> values) {
    for (const T& value : values) push_back(value);
  }
  ShortList(const std::vector<T>& values) : ShortList(std::span<const T>(values)) {}

  void push_back(const T& value) {
    if (num_ < kInPlace) {
      in_place_[num_++] = value;
      return;
    }
    if (num_ == kInPlace) heap_.assign(in_place_.begin(), in_place_.end());
    heap_.push_back(value);
    ++num_;
  }

  size_t size() const { return num_; }
  bool empty() const { return num_ == 0; }
  const T* begin() const { return num_ <= kInPlace ? in_place_.data() : heap_.data(); }
  const T* end() const { return begin() + num_; }
  operator std::span<const T>() const { return {begin(), size()}; }

 private:
  static constexpr size_t kInPlace = 6;

  size_t num_ = 0;
  std::array<T, kInPlace> in_place_{};
  std::vector<T> heap_;  // holds everything once there are more than kInPlace
};

}  // namespace piper::graph
