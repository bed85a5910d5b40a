// A count as a number of the papers' equations.
#pragma once

#include <cstdint>

namespace piper::studies {

inline double real(int64_t value) { return static_cast<double>(value); }

}  // namespace piper::studies
