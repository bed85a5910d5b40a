// A regular file, read at any offset.
//
// Thread safety: immutable after construction; any number of threads may read at once.
#pragma once

#include <cstdint>
#include <filesystem>

namespace piper::train {

class FileReader {
 public:
  // Throws IoError naming path and cause: absent, unreadable, a folder, a pipe.
  explicit FileReader(std::filesystem::path path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }  // bytes, when it was opened
  // Fills `out` with the bytes [offset, offset + size). Throws IoError naming the offset, also when the file has become
  // shorter than that.
  void read(int64_t offset, void* out, int64_t size) const;

 private:
  std::filesystem::path path_;
  int fd_;
  int64_t size_ = 0;
};

}  // namespace piper::train
