// Writes a file so that it survives a crash, hashing it on the way.
#pragma once

#include <piper/files/sha256.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace piper::files {

// What a file should hold: enough to find every flipped, cut or exchanged byte.
struct FileRecord {
  std::string name;  // within its folder
  int64_t bytes = 0;
  std::string sha256;
  // A shard has the tensor_hash() of each of its tensors here, by name (tensor_check.h), so that a
  // rank which reads a few of them can tell whether it got them. Empty in manifests of an earlier
  // Piper.
  std::map<std::string, std::string> tensors = {};
  bool operator==(const FileRecord&) const = default;
};

// Bytes an ordinary user can still write where `folder` lies. Throws IoError.
int64_t free_bytes(const std::filesystem::path& folder);

// What writing asks of the system, with the meaning of write(2), fsync(2) and the above. Tests put
// in a disk that is full, slow or broken.
struct Disk {
  std::function<ssize_t(int fd, const void* bytes, size_t size)> write;
  std::function<int(int fd)> sync;
  std::function<int64_t(const std::filesystem::path& folder)> free_bytes;
};
Disk real_disk();

// Creates (or empties) a file and appends to it; a link, a file that this process reads and what is
// no regular file are refused (output.h). All functions throw IoError naming path and cause;
// a full disk is said with the bytes still needed and the bytes free. One thread.
class FileWriter {
 public:
  // `expected_bytes` is only used in the message about a full disk.
  explicit FileWriter(std::filesystem::path path, int64_t expected_bytes = 0,
                      Disk disk = real_disk());
  ~FileWriter();  // closes; the file is complete only after finish()
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* bytes, int64_t size);
  void write(std::string_view text) { write(text.data(), static_cast<int64_t>(text.size())); }
  // fsync and close.
  FileRecord finish();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  int64_t expected_bytes_;
  Disk disk_;
  int64_t bytes_ = 0;
  Sha256 hash_;
  int fd_;
};

// Makes renames and new entries of a folder durable. Throws IoError.
void sync_folder(const std::filesystem::path& folder);

// Makes a folder and those above it, each durable before anything is put into it. Throws IoError.
void make_folders(const std::filesystem::path& folder);

// Throws IoError "<folder>: the disk is full: 12.0 GiB (12884901888 bytes) are needed, 3.0 GiB
// (...) are free".
void require_space(const std::filesystem::path& folder, int64_t needed, int64_t free);

}  // namespace piper::files
