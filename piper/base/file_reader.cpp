#include <fcntl.h>
#include <fmt/format.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/base/file_reader.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace piper {
namespace {

[[noreturn]] void cannot_read(const std::filesystem::path& path, int cause) {
  throw IoError(fmt::format("{}: cannot be read: {}", path.string(), cause_of(cause)), cause);
}

const char* kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR:
      return "a folder";
    case S_IFIFO:
      return "a pipe";
    case S_IFSOCK:
      return "a socket";
    case S_IFCHR:
    case S_IFBLK:
      return "a device";
    default:
      return "none";
  }
}

void require_regular(const std::filesystem::path& path, const struct stat& about) {
  if (!S_ISREG(about.st_mode))
    throw InvalidInput(
        fmt::format("{}: is {}; allowed: a regular file", path.string(), kind_of(about.st_mode)));
}

// Looked at before it is opened, since opening alone may wait or move something, and once more
// afterwards, since another file may have taken its place. O_NONBLOCK: that one may be a pipe.
int open_regular(const std::filesystem::path& path, struct stat& about) {
  if (::stat(path.c_str(), &about) != 0) cannot_read(path, errno);
  require_regular(path, about);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) cannot_read(path, errno);
  try {
    if (::fstat(fd, &about) != 0) cannot_read(path, errno);
    require_regular(path, about);
  } catch (...) {
    ::close(fd);
    throw;
  }
  return fd;
}

// The files that were opened, by what no name hides.
class Inputs {
 public:
  void add(const struct stat& about, const std::filesystem::path& path) {
    const std::lock_guard lock(mutex_);
    paths_[{about.st_dev, about.st_ino}] = {path, born(path)};
    if (paths_.size() < most_) return;
    // A training run reads its checkpoints again and again, and removes them.
    std::erase_if(paths_, [](const auto& input) { return !leads_there(input); });
    most_ = std::max(kFewest, 2 * paths_.size());
  }
  bool has(const struct stat& about) {
    const std::lock_guard lock(mutex_);
    const auto found = paths_.find({about.st_dev, about.st_ino});
    return found != paths_.end() && leads_there(*found);
  }

 private:
  struct Name {
    std::filesystem::path path;
    int64_t born_ns = 0;
  };
  using Paths = std::map<std::pair<dev_t, ino_t>, Name>;
  static constexpr size_t kFewest = 1024;

  // When the file of that name was made, in nanoseconds; 0 where the file system does not know.
  static int64_t born(const std::filesystem::path& path) {
    struct statx about {};
    if (::statx(AT_FDCWD, path.c_str(), 0, STATX_BTIME, &about) != 0 ||
        (about.stx_mask & STATX_BTIME) == 0)
      return 0;
    return about.stx_btime.tv_sec * 1'000'000'000 + about.stx_btime.tv_nsec;
  }

  // Once a file is removed, another one may get its number, and its name.
  static bool leads_there(const Paths::value_type& input) {
    const auto& [path, born_ns] = input.second;
    struct stat about {};
    return ::stat(path.c_str(), &about) == 0 &&
           std::pair(about.st_dev, about.st_ino) == input.first && born(path) == born_ns;
  }

  std::mutex mutex_;
  Paths paths_;
  size_t most_ = kFewest;
};

Inputs& inputs() {
  static Inputs all;
  return all;
}

}  // namespace

bool is_input(const struct stat& about) { return inputs().has(about); }

FileReader::FileReader(std::filesystem::path path, Reads reads) : path_(std::move(path)) {
  struct stat about {};
  fd_ = open_regular(path_, about);
  if (reads == Reads::kInput) inputs().add(about, path_);
  size_ = about.st_size;
  modified_ns_ = int64_t{about.st_mtim.tv_sec} * 1'000'000'000 + about.st_mtim.tv_nsec;
}

FileReader::~FileReader() { ::close(fd_); }

void FileReader::read(int64_t offset, void* out, int64_t size) const {
  auto* next = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t count = ::pread(fd_, next, static_cast<size_t>(size), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int cause = count < 0 ? errno : 0;
      throw IoError(fmt::format("{}: cannot be read at byte {}: {}", path_.string(), offset,
                                count < 0 ? cause_of(cause) : "the file has become shorter"),
                    cause);
    }
    next += count;
    offset += count;
    size -= count;
  }
}

void FileReader::drop_cached_pages() const {
  static_cast<void>(::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED));
}

}  // namespace piper
