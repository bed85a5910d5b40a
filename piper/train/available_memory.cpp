#include <piper/train/available_memory.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace piper::train {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

int64_t machine(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string key; file >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) return kib * 1024;
    std::getline(file, key);
  }
  return kUnknown;
}

// Version 2; a file that says "max" sets no limit.
int64_t control_group(const std::filesystem::path& root) {
  const auto read = [&](const char* name) {
    int64_t bytes = -1;
    std::ifstream(root / "sys/fs/cgroup" / name) >> bytes;
    return bytes;
  };
  const int64_t limit = read("memory.max"), used = read("memory.current");
  return limit > 0 && used >= 0 ? std::max<int64_t>(0, limit - used) : kUnknown;
}

}  // namespace

int64_t available_memory_bytes(const std::filesystem::path& root) {
  return std::min(machine(root), control_group(root));
}

}  // namespace piper::train
