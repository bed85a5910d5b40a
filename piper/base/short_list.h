// A list that is nearly always short: a few entries lie in place, more on the heap. A graph or a
// list of steps makes millions of them; with a std::vector the allocations were most of the time
// that writing it took.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace piper {

// T is a plain value with a default. Not thread-safe.
template <class T, int32_t kInPlace>
class ShortList {
  static_assert(std::is_trivially_copy_constructible_v<T> && std::is_trivially_destructible_v<T>);

 public:
  ShortList() = default;
  ShortList(std::initializer_list<T> values) { append(values.begin(), values.end()); }
  ShortList(std::span<const T> values) { append(values.data(), values.data() + values.size()); }
  ShortList(const std::vector<T>& values) : ShortList(std::span<const T>(values)) {}
  ShortList(const ShortList& other) { append(other.begin(), other.end()); }
  ShortList(ShortList&& other) noexcept { take(other); }
  ShortList& operator=(const ShortList& other) {
    if (this != &other) {
      clear();
      append(other.begin(), other.end());
    }
    return *this;
  }
  ShortList& operator=(ShortList&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  ~ShortList() { release(); }

  const T* begin() const { return capacity_ > kInPlace ? heap_ : in_place_; }
  const T* end() const { return begin() + size_; }
  T* begin() { return capacity_ > kInPlace ? heap_ : in_place_; }
  T* end() { return begin() + size_; }
  size_t size() const { return static_cast<size_t>(size_); }
  bool empty() const { return size_ == 0; }
  T operator[](size_t i) const { return begin()[i]; }
  operator std::span<const T>() const { return {begin(), size()}; }

  void clear() { size_ = 0; }
  void push_back(T value) {
    if (size_ == capacity_) grow();
    begin()[size_++] = value;
  }
  void append(const T* first, const T* last) {
    for (; first != last; ++first) push_back(*first);
  }
  bool operator==(const ShortList& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  void grow() {
    const int32_t capacity = 2 * capacity_;
    auto* larger = new T[static_cast<size_t>(capacity)];
    // No std::copy: with sanitizers on, gcc 12 takes its memmove for one out of bounds.
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
  void take(ShortList& other) {
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
    T in_place_[kInPlace] = {};
    T* heap_;
  };
};

}  // namespace piper
