// The text of a routing trace, which may be compressed on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace piper::cost {

inline constexpr int64_t kMostTraceBytes = int64_t{1} << 30;  // decompressed

// What gzip made of a text, members one after the other; anything else as it is. `source` names it
// in errors. Throws InvalidInput: damaged, cut off, or longer than `most_bytes`.
std::string gunzipped(std::string_view bytes, const std::string& source,
                      int64_t most_bytes = kMostTraceBytes);

// Throws InvalidInput as gunzipped, IoError.
std::string read_trace_file(const std::filesystem::path& path);

}  // namespace piper::cost
