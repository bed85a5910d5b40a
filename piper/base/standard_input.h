// `-` in place of a config's or a strategy's path: what is written to this process's standard
// input.
#pragma once

#include <piper/base/json_fwd.h>

#include <cstdint>
#include <string>

namespace piper {

inline constexpr const char* kStandardInput = "-";

// The text of standard input, up to its end. It is read once; whoever asks again gets the same.
// Throws IoError when it cannot be read, InvalidInput when it is longer than `max_bytes`.
// Thread-safe.
const std::string& standard_input(int64_t max_bytes);

// The document in a file (read_json_file), or in standard input where the path is "-".
Json read_json_input(const std::string& path_or_dash, int64_t max_bytes = 64 << 20);

}  // namespace piper
