// What the fuzz programs share. Each defines fuzz(), which gives bytes to one reader and may do what it likes with what the
// reader accepts: count it, write it, read it again.
#pragma once

#include <piper/base/json.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace piper::fuzz {

// Takes bytes of any length and content. Bad bytes are expected to throw InvalidInput or IoError;
// whatever else leaves this function (another exception, a failed check, a signal, what a sanitizer
// finds) is a finding.
void fuzz(std::span<const std::byte> bytes);

// Prints the condition and aborts: what a reader accepted is not what it promises.
#define FUZZ_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::piper::fuzz::promise_broken(#condition))
[[noreturn]] void promise_broken(std::string_view what);

inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace piper::fuzz
