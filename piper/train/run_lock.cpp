#include <fcntl.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/files/output.h>
#include <piper/train/run_lock.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace piper::train {
namespace {

constexpr size_t kLongestHolder = 511;

std::string this_process() {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  return fmt::format("process {} on {}", ::getpid(), host);
}

// What the file holds, its first kLongestHolder + 1 bytes.
std::string content_of(int file) {
  char text[kLongestHolder + 1] = {};
  const ssize_t size = ::pread(file, text, sizeof text, 0);
  return {text, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

// A lock file is empty (made a moment ago, or on a full disk) or holds what this_process() writes.
bool is_ours(const std::string& content) {
  return content.empty() ||
         (content.size() <= kLongestHolder && content.starts_with("process ") &&
          content.find(" on ") != std::string::npos && content.find('\n') == std::string::npos);
}

// The open file, which is a regular one and Piper's.
int open_lock(const std::string& path) {
  const int file =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0644);
  if (file < 0 && (errno == ELOOP || errno == EISDIR || errno == ENXIO))
    throw InvalidInput(fmt::format(
        "{}: {}; allowed: a regular file, or none", path,
        errno == ELOOP ? "is a symbolic link, and Piper follows none" : "is no regular file"));
  if (file < 0) throw IoError(fmt::format("{}: cannot be made: {}", path, std::strerror(errno)));
  struct stat about {};
  const bool regular = ::fstat(file, &about) == 0 && S_ISREG(about.st_mode);
  if (regular && is_ours(content_of(file))) return file;
  ::close(file);
  throw InvalidInput(
      path + (regular ? ": holds something that Piper did not write" : ": is no regular file") +
      "; allowed: to move it away, or another --run folder");
}

int try_lock_file(const RunLock::Flock& flock, int file) {
  int result = 0;
  while ((result = flock(file, LOCK_EX | LOCK_NB)) != 0 && errno == EINTR) {
  }
  return result;
}

}  // namespace

RunLock::Flock RunLock::system_flock() { return ::flock; }

RunLock::RunLock(const std::filesystem::path& folder, Flock flock)
    : path_(folder / "lock"), flock_(std::move(flock)) {
  const std::string path = path_.string();
  file_ = open_lock(path);
  const int result = try_lock_file(flock_, file_);
  if (result != 0) {
    const int error = errno;
    const std::string holder = content_of(file_);
    ::close(std::exchange(file_, -1));
    if (error == EWOULDBLOCK)
      throw InvalidInput(fmt::format(
          "{} is in use: {} trains there; allowed: another --run folder, or to wait for its end",
          folder.string(), holder.empty() ? "another process" : holder));
    warning_ = fmt::format(
        "{}: the file system has no locks ({}): watch that no second run uses this folder, Piper "
        "cannot tell and the two would delete each other's checkpoints",
        path, std::strerror(error));
    return;
  }
  const std::string mine = this_process();
  if (::ftruncate(file_, 0) == 0 &&
      ::pwrite(file_, mine.data(), mine.size(), 0) != static_cast<ssize_t>(mine.size())) {
    // A full disk: the lock holds, its holder has no name.
  }
}

void RunLock::hold(const std::filesystem::path& folder) {
  if (std::ranges::any_of(folders_, [&](const Held& held) { return held.folder == folder; }))
    return;
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  if (try_lock_file(flock_, file) != 0 && errno == EWOULDBLOCK) {
    ::close(file);
    throw InvalidInput(fmt::format(
        "{} is in use: another run writes there; allowed: a --run folder whose {} leads elsewhere, "
        "or to wait for its end",
        folder.string(), folder.filename().string()));
  }
  folders_.push_back({folder, file});  // also where folders cannot be locked
}

std::string RunLock::lost() const {
  if (file_ >= 0 && !files::is_still(path_, file_)) return path_.string();
  for (const Held& held : folders_) {
    struct stat there {};
    struct stat open {};
    if (::stat(held.folder.c_str(), &there) != 0 || ::fstat(held.file, &open) != 0 ||
        there.st_dev != open.st_dev || there.st_ino != open.st_ino)
      return held.folder.string();
  }
  return "";
}

RunLock::~RunLock() {
  if (file_ >= 0) ::close(file_);
  for (const Held& held : folders_) ::close(held.file);
}

RunLock::RunLock(RunLock&& other) noexcept
    : path_(std::move(other.path_)),
      flock_(std::move(other.flock_)),
      folders_(std::exchange(other.folders_, {})),
      file_(std::exchange(other.file_, -1)),
      warning_(std::move(other.warning_)) {}

}  // namespace piper::train
