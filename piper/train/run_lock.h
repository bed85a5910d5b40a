// One run at a time in a folder: held while the run lives, and gone with its process, however that ends.
#pragma once

#include <filesystem>

namespace piper::train {

// Move-only. Not thread-safe.
class RunLock {
 public:
  // Throws InvalidInput naming the process and host that hold the folder; IoError where the file cannot be made. On a file
  // system without locks nothing is held, and nothing refused.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;

 private:
  int file_ = -1;
};

}  // namespace piper::train
