// Preloaded by kill_train.py. It stands before the functions that change a file system, and tells
// by the call and the kind of file in which phase of a save the process is. A kind is a path
// without digits and without what tells temporary names apart: "rename checkpoints/step-.tmp-".
// Only paths that contain FILE_FAULTS_UNDER count. The environment says what happens:
//   FILE_FAULTS_LOG   the phases, a line a call, are appended to this file
//   FILE_FAULTS_AT    "number phase": that call of this phase, counted from 1, ends the process
//                     with SIGKILL before it is made, or, with FILE_FAULTS_ERRNO, fails with that
//                     error
//   FILE_FAULTS_STAY  if it is set, every counted call from then on fails so, whatever its phase
//   FILE_FAULTS_ONCE  a file to make: of several processes only the one that makes it is hurt
// Each process counts its own calls. Threads may call them at once.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::atomic<int> num_seen{0};
std::atomic<bool> is_broken{false};

// By system calls: the functions of those names stand below.
void append(const char* path, const std::string& line) {
  const long fd =
      ::syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return;
  ::syscall(SYS_write, fd, line.data(), line.size());
  ::syscall(SYS_close, fd);
}

bool is_first_process() {
  const char* once = setting("FILE_FAULTS_ONCE");
  return *once == 0 ||
         ::syscall(SYS_openat, AT_FDCWD, once, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644) >= 0;
}

// Without digits, and behind "tmp-" without what numbers and tokens are made of.
std::string kind_of(const std::string& name) {
  std::string kind;
  for (const char c : name) {
    const char* left_out = kind.ends_with("tmp-") ? "0123456789abcdef-" : "0123456789";
    if (std::strchr(left_out, c) == nullptr) kind += c;
  }
  return kind;
}

// The error that the call is to fail with; 0: it is to be made.
int fault(const char* call, const std::string& path) {
  const std::string under = setting("FILE_FAULTS_UNDER");
  const size_t begin = under.empty() ? std::string::npos : path.find(under);
  if (begin == std::string::npos) return 0;
  const std::string phase = std::string(call) + " " + kind_of(path.substr(begin + under.size()));
  const char* log = setting("FILE_FAULTS_LOG");
  if (*log != 0) append(log, phase + "\n");
  if (is_broken) return std::atoi(setting("FILE_FAULTS_ERRNO"));
  char* wanted = nullptr;
  const long number = std::strtol(setting("FILE_FAULTS_AT"), &wanted, 10);
  if (number == 0 || phase != wanted + 1 || ++num_seen != number || !is_first_process()) return 0;
  const int error = std::atoi(setting("FILE_FAULTS_ERRNO"));
  if (error == 0) ::kill(::getpid(), SIGKILL);
  is_broken = *setting("FILE_FAULTS_STAY") != 0;
  return error;
}

std::string path_of(int fd) {
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = ::readlink(link, path, sizeof path);
  return size < 0 ? "" : std::string(path, static_cast<size_t>(size));
}

// A path that is relative to a folder, as the functions with "at" take it.
std::string path_at(int folder, const char* path) {
  return folder == AT_FDCWD || path[0] == '/' ? path : path_of(folder) + "/" + path;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

bool is_written(int flags) { return (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0; }

}  // namespace

#define FAIL_IF_HURT(call, path)                    \
  if (const int error = fault(call, path); error) { \
    errno = error;                                  \
    return -1;                                      \
  }

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  if (is_written(flags)) FAIL_IF_HURT("open", path);
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return open(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  if (is_written(flags)) FAIL_IF_HURT("open", path_at(folder, path));
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}
ssize_t write(int fd, const void* bytes, size_t size) {
  FAIL_IF_HURT("write", path_of(fd));
  return ::syscall(SYS_write, fd, bytes, size);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  FAIL_IF_HURT("write", path_of(fd));
  return ::syscall(SYS_writev, fd, parts, count);
}
int fsync(int fd) {
  FAIL_IF_HURT("fsync", path_of(fd));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
int flock(int fd, int operation) {
  FAIL_IF_HURT("flock", path_of(fd));
  return static_cast<int>(::syscall(SYS_flock, fd, operation));
}
int ftruncate(int fd, off_t size) {
  FAIL_IF_HURT("ftruncate", path_of(fd));
  return static_cast<int>(::syscall(SYS_ftruncate, fd, size));
}
int mkdir(const char* path, mode_t mode) {
  FAIL_IF_HURT("mkdir", path);
  return next<int(const char*, mode_t)>("mkdir")(path, mode);
}
int rename(const char* from, const char* to) {
  FAIL_IF_HURT("rename", from);
  return next<int(const char*, const char*)>("rename")(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  FAIL_IF_HURT("rename", path_at(from_folder, from));
  return next<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_folder, from,
                                                                              to_folder, to, flags);
}
int unlink(const char* path) {
  FAIL_IF_HURT("remove", path);
  return next<int(const char*)>("unlink")(path);
}
int rmdir(const char* path) {
  FAIL_IF_HURT("remove", path);
  return next<int(const char*)>("rmdir")(path);
}
int remove(const char* path) {
  FAIL_IF_HURT("remove", path);
  return next<int(const char*)>("remove")(path);
}
int unlinkat(int folder, const char* path, int flags) {
  FAIL_IF_HURT("remove", path_at(folder, path));
  return next<int(int, const char*, int)>("unlinkat")(folder, path, flags);
}

}  // extern "C"
