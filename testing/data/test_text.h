// Texts of tests: one to train on, and all bytes of a short one.
#pragma once

#include <piper/data/text.h>

#include <string>

namespace piper::data {

// 4 KB of English, the same at every call.
inline std::string some_text() {
  std::string text;
  while (text.size() < 4000) text += "the quick brown fox jumps over the lazy dog; ";
  return text;
}

inline std::string bytes_of(const Text& text) {
  std::string bytes(static_cast<size_t>(text.size()), '\0');
  text.read(0, bytes.data(), text.size());
  return bytes;
}

}  // namespace piper::data
