// What tests ask of a text: whether a part stands in it, and how often.
#pragma once

#include <string_view>

namespace piper {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Places that overlap are counted each.
inline size_t count(std::string_view text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace piper
