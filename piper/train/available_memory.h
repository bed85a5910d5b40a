// How much memory this process could still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace piper::train {

// Bytes: what the machine has available (MemAvailable of /proc/meminfo), or what the process's
// control groups of memory leave it (version 1 or 2; its own, as a batch system sets it, and all that
// hold it), whichever is least. The largest int64 where nothing is known. `root` stands for "/" in
// tests.
int64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace piper::train
