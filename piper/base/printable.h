// How text from outside stands in a message: it must not steer the terminal that shows it, nor fill
// it. Thread-safe.
#pragma once

#include <string>

namespace piper {

// A key or a value: control characters become '?', what is beyond 60 bytes is "...". No UTF-8
// character is cut.
std::string printable(std::string text);

// A whole problem, whatever went into it: the same with 1000 bytes.
std::string one_line(std::string what);

}  // namespace piper
