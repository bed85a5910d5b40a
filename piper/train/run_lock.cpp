#include <fcntl.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/train/run_lock.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace piper::train {
namespace {

std::string holder_of(int file) {
  char text[512] = {};
  const ssize_t size = ::pread(file, text, sizeof(text) - 1, 0);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "another process";
}

std::string this_process() {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  return fmt::format("process {} on {}", ::getpid(), host);
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& folder) {
  const std::string path = (folder / "lock").string();
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) throw IoError(fmt::format("{}: cannot be made: {}", path, std::strerror(errno)));
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    const std::string holder = holder_of(file_);
    ::close(std::exchange(file_, -1));
    if (error != EWOULDBLOCK) return;
    throw InvalidInput(fmt::format(
        "{} is in use: {} trains there; allowed: another --run folder, or to wait for its end",
        folder.string(), holder));
  }
  const std::string mine = this_process();
  if (::ftruncate(file_, 0) == 0 &&
      ::pwrite(file_, mine.data(), mine.size(), 0) != static_cast<ssize_t>(mine.size())) {
    // A full disk: the lock holds, its holder has no name.
  }
}

RunLock::~RunLock() {
  if (file_ >= 0) ::close(file_);
}

RunLock::RunLock(RunLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}

}  // namespace piper::train
