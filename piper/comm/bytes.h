// Numbers and texts as the bytes of a frame: in this machine's byte order (all processes of a run
// are builds of one kind), without padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace piper::comm {

class ByteWriter {
 public:
  // Appends to `bytes`, whose memory it reuses.
  explicit ByteWriter(std::vector<std::byte> bytes = {}) : bytes_(std::move(bytes)) {}

  template <class T>
  ByteWriter& number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    return raw({reinterpret_cast<const std::byte*>(&value), sizeof value});
  }
  // Its length in 32 bits, then its bytes.
  ByteWriter& text(std::string_view value) {
    number(static_cast<uint32_t>(value.size()));
    return raw(std::as_bytes(std::span(value)));
  }
  ByteWriter& raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads what a ByteWriter wrote. What is missing reads as zero or "" and clears ok(): check it
// once, at the end. Never allocates more than there are bytes.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T number() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    T value{};
    const auto from = raw(sizeof value);
    if (ok_) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  std::string_view text() {
    const auto from = raw(number<uint32_t>());
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  std::span<const std::byte> raw(size_t size) {
    if (size > bytes_.size()) ok_ = false;
    if (!ok_) return {};
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }
  std::span<const std::byte> rest() const { return bytes_; }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && bytes_.empty(); }  // everything was there, and nothing else

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace piper::comm
