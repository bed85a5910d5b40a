// A queue of events for a clock that never goes back: a hierarchical timing wheel.
//
// A time is a number in digits of six bits. An event waits in the slot of its highest digit that
// differs from now's: slot [level][digit]. When a slot of level l comes first, now moves to its
// begin, and its events move to lower levels: an event moves at most once a level, in long runs of
// memory, where a heap would jump. Events of one time leave in the order in which they came.
//
//   now = 3.17.05      a = 3.17.09 -> [0][9]      b = 3.18.01 -> [1][18]      c = 4.00.00 -> [2][4]
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace piper::sim {

// Event has a member `int64_t time`, 0 or more. Not thread-safe.
template <class Event>
class TimeWheel {
 public:
  bool empty() const { return size_ == 0; }
  int64_t now() const { return now_; }

  // Requires event.time >= now().
  void push(const Event& event) {
    const auto different = static_cast<uint64_t>(event.time ^ now_);
    const int level = different == 0 ? 0 : (63 - std::countl_zero(different)) / kBits;
    const auto digit = static_cast<size_t>(event.time >> (level * kBits)) & (kSlots - 1);
    slots_[level][digit].push_back(event);
    taken_[level] |= uint64_t{1} << digit;
    ++size_;
  }

  // The earliest event; now() becomes its time. Good until the next push. Requires !empty().
  const Event& pop() {
    --size_;
    while (true) {
      std::vector<Event>& current = slots_[0][static_cast<size_t>(now_) & (kSlots - 1)];
      if (next_ < current.size()) return current[next_++];
      leave(current);
      if (taken_[0] != 0) {
        now_ = (now_ & ~int64_t{kSlots - 1}) | std::countr_zero(taken_[0]);
      } else {
        descend();
      }
    }
  }

 private:
  static constexpr int kBits = 6;
  static constexpr size_t kSlots = size_t{1} << kBits;
  static constexpr int kLevels = (63 + kBits - 1) / kBits;

  void leave(std::vector<Event>& current) {
    current.clear();
    next_ = 0;
    taken_[0] &= ~(uint64_t{1} << (static_cast<size_t>(now_) & (kSlots - 1)));
  }

  // Nothing of this 64th of time is left: takes the first slot of the lowest level apart.
  void descend() {
    int level = 1;
    while (taken_[level] == 0) ++level;
    const int digit = std::countr_zero(taken_[level]);
    const int shift = level * kBits;
    std::vector<Event>& slot = slots_[level][static_cast<size_t>(digit)];
    taken_[level] &= ~(uint64_t{1} << digit);
    // An event alone is the next one: now moves to it at once.
    const int64_t above = (now_ >> shift) & ~int64_t{kSlots - 1};
    now_ = slot.size() == 1 ? slot.front().time : (above | digit) << shift;
    size_ -= slot.size();
    for (const Event& event : slot) push(event);
    slot.clear();
  }

  int64_t now_ = 0;
  size_t size_ = 0;
  size_t next_ = 0;  // in the slot of now
  std::array<uint64_t, kLevels> taken_{};
  std::array<std::array<std::vector<Event>, kSlots>, kLevels> slots_;
};

}  // namespace piper::sim
