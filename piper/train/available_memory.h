// How much memory this process could still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace piper::train {

// Returns the bytes that the machine has available (MemAvailable of /proc/meminfo) or that the
// process's control groups leave it, whichever is least: version 1 or 2, its own group, as a batch
// system sets it, and all that hold it. It is the largest int64 where nothing is known. `root`
// stands for "/" in tests.
int64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace piper::train
