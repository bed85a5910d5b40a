// A regular file, read at any offset: the one way in for bytes from outside. Nothing else in this
// tree opens a file that a user names.
//
// A pipe, a socket, a device or a folder is refused before it is opened, so that none of them can
// make Piper wait or read without end. Links to regular files are followed. Reading is by pread(2):
// of a mapping that somebody shortens, the next access would be a signal; here it is an error.
//
// Thread safety: immutable after construction; any number of threads may read at once.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>

namespace piper {

// Whether this process has opened the file, by whatever name, with a FileReader, and the name that
// it used last still leads there: what it reads is no place for what it writes. Thread-safe.
bool is_input(const struct stat& about);

enum class Reads {
  kInput,
  kRecord  // what Piper wrote and goes on with, or replaces: no input (is_input)
};

class FileReader {
 public:
  // Throws InvalidInput naming what the path is, where that is no regular file; IoError naming path
  // and cause, where it is absent or unreadable.
  explicit FileReader(std::filesystem::path path, Reads reads = Reads::kInput);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }  // bytes, when it was opened
  // When its bytes were last changed, in nanoseconds since 1970, as it was opened.
  int64_t modified_ns() const { return modified_ns_; }
  // Fills `out` with the bytes [offset, offset + size). Throws IoError naming the offset, also when
  // the file has become shorter than that.
  void read(int64_t offset, void* out, int64_t size) const;
  // Asks the system to drop the file's pages, so that the next read comes from the disk. It is an
  // advice: pages not yet written, and file systems in memory, keep them.
  void drop_cached_pages() const;

 private:
  std::filesystem::path path_;
  int fd_;
  int64_t size_ = 0;
  int64_t modified_ns_ = 0;
};

}  // namespace piper
