// All bytes of a short text, for tests.
#pragma once

#include <piper/data/text.h>

#include <string>

namespace piper::data {

inline std::string bytes_of(const Text& text) {
  std::string bytes(static_cast<size_t>(text.size()), '\0');
  text.read(0, bytes.data(), text.size());
  return bytes;
}

}  // namespace piper::data
