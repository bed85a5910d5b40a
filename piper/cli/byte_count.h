// Counts of bytes as a flag takes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace piper::cli {

// "4096", "4K", "16M", "1G" (powers of 1024); a problem and `min` when it is none, or outside.
int64_t read_bytes(const std::string& flag, const std::string& text, int64_t min, int64_t max,
                   std::vector<std::string>* problems);

}  // namespace piper::cli
