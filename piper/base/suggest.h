// "did you mean ...?" for flags, keys, subcommands and built-in names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace piper {

// The shortest candidate that contains `word` (three letters of it at least, the first of several);
// else the nearest by edit distance, or "" when none is near enough to be a typing error.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// "; did you mean 'x'?" or "".
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

// The text with A to Z as a to z, the form in which names are compared.
std::string lower(std::string text);

}  // namespace piper
