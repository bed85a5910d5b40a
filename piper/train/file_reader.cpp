#include <fcntl.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/train/file_reader.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace piper::train {

// O_NONBLOCK: opening a pipe must not wait for its writer.
FileReader::FileReader(std::filesystem::path path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat about {};
  if (fd_ < 0 || ::fstat(fd_, &about) != 0) {
    const int cause = errno;
    if (fd_ >= 0) ::close(fd_);
    throw IoError(fmt::format("{}: cannot be read: {}", path_.string(), std::strerror(cause)));
  }
  if (!S_ISREG(about.st_mode)) {
    ::close(fd_);
    throw IoError(path_.string() + ": is no regular file");
  }
  size_ = about.st_size;
}

FileReader::~FileReader() { ::close(fd_); }

void FileReader::read(int64_t offset, void* out, int64_t size) const {
  auto* next = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t count = ::pread(fd_, next, static_cast<size_t>(size), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw IoError(fmt::format("{}: cannot be read at byte {}: {}", path_.string(), offset,
                                count < 0 ? std::strerror(errno) : "the file has become shorter"));
    next += count;
    offset += count;
    size -= count;
  }
}

}  // namespace piper::train
