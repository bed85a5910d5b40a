// What a step waits for: a list that is nearly always short. Two entries lie in place, more on the
// heap; with a std::vector a list of a million steps would take a million allocations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace piper::collective {

// Indices of steps. Not thread-safe.
class After {
 public:
  After() = default;
  After(std::initializer_list<int32_t> steps) { append(steps.begin(), steps.end()); }
  After(const std::vector<int32_t>& steps) { append(steps.data(), steps.data() + steps.size()); }
  After(const After& other) { append(other.begin(), other.end()); }
  After(After&& other) noexcept { take(other); }
  After& operator=(const After& other) {
    if (this != &other) {
      clear();
      append(other.begin(), other.end());
    }
    return *this;
  }
  After& operator=(After&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  ~After() { release(); }

  const int32_t* begin() const { return capacity_ > kInPlace ? heap_ : in_place_; }
  const int32_t* end() const { return begin() + size_; }
  int32_t* begin() { return capacity_ > kInPlace ? heap_ : in_place_; }
  int32_t* end() { return begin() + size_; }
  size_t size() const { return static_cast<size_t>(size_); }
  bool empty() const { return size_ == 0; }
  int32_t operator[](size_t i) const { return begin()[i]; }
  void clear() { size_ = 0; }

  void push_back(int32_t step) {
    if (size_ == capacity_) grow();
    begin()[size_++] = step;
  }
  void append(const int32_t* first, const int32_t* last) {
    for (; first != last; ++first) push_back(*first);
  }
  bool operator==(const After& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  static constexpr int32_t kInPlace = 2;

  void grow() {
    const int32_t capacity = std::max(2 * kInPlace, 2 * capacity_);
    auto* larger = new int32_t[static_cast<size_t>(capacity)];
    for (int32_t i = 0; i < size_; ++i) larger[i] = begin()[i];
    release();
    heap_ = larger;
    capacity_ = capacity;
  }
  void release() {
    if (capacity_ > kInPlace) delete[] heap_;
    capacity_ = kInPlace;
  }
  // Leaves the other one empty. Requires that nothing is held.
  void take(After& other) {
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, kInPlace);
    if (capacity_ > kInPlace)
      heap_ = other.heap_;
    else
      for (int32_t i = 0; i < kInPlace; ++i) in_place_[i] = other.in_place_[i];
  }

  int32_t size_ = 0;
  int32_t capacity_ = kInPlace;
  union {
    int32_t in_place_[kInPlace] = {};
    int32_t* heap_;
  };
};

}  // namespace piper::collective
