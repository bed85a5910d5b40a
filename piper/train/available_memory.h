// How much memory this process could still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace piper::train {

// What the machine has available (MemAvailable of /proc/meminfo) and the process's control group
// leaves it, whichever is less; the largest int64 where neither is known. `root` stands for "/" in
// tests.
int64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace piper::train
