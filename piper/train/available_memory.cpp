#include <piper/train/available_memory.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// The number behind `key` in a file of lines "key number ..."; kUnknown where there is none.
int64_t number_of(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    int64_t number = 0;
    if (word == key && file >> number) return number;
    std::getline(file, word);
  }
  return kUnknown;
}

int64_t machine(const fs::path& root) {
  const int64_t kib = number_of(root / "proc/meminfo", "MemAvailable:");
  return kib == kUnknown ? kUnknown : kib * 1024;
}

// How a version of control groups names its files below /sys/fs/cgroup.
struct GroupFiles {
  const char* folder;
  const char* limit;
  const char* used;
  const char* given_back;  // in memory.stat: pages of files that the kernel drops first
};

constexpr GroupFiles kVersion1{"memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};
constexpr GroupFiles kVersion2{"", "memory.max", "memory.current", "inactive_file"};

// A group without a limit (version 2 writes "max", version 1 nearly the largest number) leaves all.
int64_t left_by(const fs::path& group, const GroupFiles& files) {
  const auto read = [&](const char* name) {
    int64_t bytes = -1;
    std::ifstream(group / name) >> bytes;
    return bytes;
  };
  const int64_t limit = read(files.limit), used = read(files.used);
  if (limit <= 0 || used < 0) return kUnknown;
  const int64_t cached = number_of(group / "memory.stat", files.given_back);
  return std::max<int64_t>(0, limit - used + (cached == kUnknown ? 0 : std::min(cached, used)));
}

// What a group and all that hold it leave: a batch system limits the job's group, and a step's or a
// task's lies inside. A container may show its own group as the topmost one, at another path than
// the process is told, so that what is not there leaves all.
int64_t left_by_all(const fs::path& root, const std::string& group, const GroupFiles& files) {
  const fs::path top = root / "sys/fs/cgroup" / files.folder;
  int64_t left = left_by(top, files);
  for (fs::path inner = fs::path(group).relative_path(); !inner.empty();
       inner = inner.parent_path())
    left = std::min(left, left_by(top / inner, files));
  return left;
}

// A line of /proc/self/cgroup is number:controllers:path; version 2 names no controllers.
int64_t control_groups(const fs::path& root) {
  int64_t left = std::min(left_by_all(root, "", kVersion2), left_by_all(root, "", kVersion1));
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,")
      left = std::min(left, left_by_all(root, line.substr(second + 1), kVersion2));
    if (controllers.find(",memory,") != std::string::npos)
      left = std::min(left, left_by_all(root, line.substr(second + 1), kVersion1));
  }
  return left;
}

}  // namespace

int64_t available_memory_bytes(const fs::path& root) {
  return std::min(machine(root), control_groups(root));
}

}  // namespace piper::train
