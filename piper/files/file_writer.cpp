#include <fcntl.h>
#include <fmt/format.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/base/units.h>
#include <piper/files/file_writer.h>
#include <piper/files/output.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace piper::files {
namespace {

std::string full_disk(const std::filesystem::path& folder, int64_t needed, int64_t free) {
  struct statvfs about {};
  if (::statvfs(folder.c_str(), &about) == 0 && about.f_files > 0 && about.f_favail == 0)
    return fmt::format("{}: no inode is left: all {} of its file system are taken (df -i)",
                       folder.string(), about.f_files);
  return fmt::format("{}: the disk is full: {} ({} bytes) are needed, {} ({} bytes) are free",
                     folder.string(), format_bytes(static_cast<double>(needed)), needed,
                     format_bytes(static_cast<double>(free)), free);
}

}  // namespace

Disk real_disk() { return {.write = ::write, .sync = ::fsync, .free_bytes = free_bytes}; }

FileWriter::FileWriter(std::filesystem::path path, int64_t expected_bytes, Disk disk)
    : path_(std::move(path)), expected_bytes_(expected_bytes), disk_(std::move(disk)), fd_(-1) {
  std::error_code ignored;
  if (!std::filesystem::is_character_file(path_, ignored)) require_output(path_, Existing::kAny);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd_ < 0) fail("created");
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::fail(const char* what) const {
  const int cause = errno;
  if (cause == ENOSPC || cause == EDQUOT)
    throw IoError(full_disk(path_.parent_path(), std::max<int64_t>(expected_bytes_ - bytes_, 1),
                            disk_.free_bytes(path_.parent_path())));
  throw IoError(fmt::format("{}: cannot be {}: {}", path_.string(), what, cause_of(cause)));
}

void FileWriter::write(const void* bytes, int64_t size) {
  const auto* next = static_cast<const char*>(bytes);
  int64_t left = size;
  while (left > 0) {
    const ssize_t written = disk_.write(fd_, next, static_cast<size_t>(left));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("written");
    hash_.update(next, static_cast<size_t>(written));
    next += written;
    left -= written;
    bytes_ += written;
  }
}

FileRecord FileWriter::finish() {
  if (disk_.sync(fd_) != 0) fail("flushed");
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail("closed");
  return {.name = path_.filename().string(), .bytes = bytes_, .sha256 = hash_.finish()};
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int cause = errno;
  if (fd >= 0) ::close(fd);
  if (!synced)
    throw IoError(fmt::format("{}: cannot be flushed: {}", folder.string(), cause_of(cause)));
}

void make_folders(const std::filesystem::path& folder) {
  std::error_code error;
  if (folder.empty() || std::filesystem::is_directory(folder, error)) return;
  const std::filesystem::path parent = folder.parent_path();
  make_folders(parent);
  if (!std::filesystem::create_directory(folder, error) && error)
    throw IoError(fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
  sync_folder(parent.empty() ? "." : parent);
}

int64_t free_bytes(const std::filesystem::path& folder) {
  struct statvfs volume {};
  if (::statvfs(folder.empty() ? "." : folder.c_str(), &volume) != 0)
    throw IoError(fmt::format("{}: cannot be asked for its free space: {}", folder.string(),
                              cause_of(errno)));
  return static_cast<int64_t>(volume.f_bavail) * static_cast<int64_t>(volume.f_frsize);
}

void require_space(const std::filesystem::path& folder, int64_t needed, int64_t free) {
  if (needed > free) throw IoError(full_disk(folder, needed, free));
}

}  // namespace piper::files
