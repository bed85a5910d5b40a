#include <fcntl.h>
#include <fmt/format.h>
#include <piper/base/cause.h>
#include <piper/base/error.h>
#include <piper/base/file_reader.h>
#include <piper/base/json.h>
#include <piper/files/output.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace piper::files {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHeadBytes = 1024;
std::atomic<bool> replaces_foreign_files{false};
// Keys by which documents of Piper's that are no results of a command say whose they are.
constexpr std::array kMarks = {kMark, kWrittenBy, std::string_view("\"piper_profile\"")};

[[noreturn]] void refuse(const fs::path& path, std::string_view what) {
  throw InvalidInput(fmt::format("{}: {}", path.string(), what));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// /dev/stdout is a link, and may lead to a file that a shell opened: written where that one stands.
std::optional<int> standard_descriptor(const fs::path& path) {
  const std::string text = path.string();
  if (text == "/dev/stdout") return STDOUT_FILENO;
  if (text == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view prefix : {"/dev/fd/", "/proc/self/fd/"}) {
    int fd = -1;
    if (!text.starts_with(prefix)) continue;
    const auto [end, error] =
        std::from_chars(text.data() + prefix.size(), text.data() + text.size(), fd);
    if (error == std::errc() && end == text.data() + text.size() && fd >= 0) return fd;
  }
  return std::nullopt;
}

// The first bytes of an open file, without it becoming an input.
std::string head_of(int fd) {
  std::string head(kHeadBytes, '\0');
  const ssize_t size = ::pread(fd, head.data(), head.size(), 0);
  head.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return head;
}

std::string head_of(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return file.get() < 0 ? "?" : head_of(file.get());  // what cannot be read is not known to be ours
}

// A regular file, as stat(2) sees it.
void require_replaceable(const fs::path& path, const struct stat& about, Existing existing,
                         const std::string& head) {
  if (existing == Existing::kRecord) return;
  if (is_input(about))
    refuse(path, "is read by this command, and is not written over; allowed: another name");
  if (existing == Existing::kOurs && !replaces_foreign_files && !is_ours(head))
    refuse(path, "was not written by Piper; allowed: another name, or --force to replace it");
}

// What is written in place: a terminal, a device such as /dev/null, a pipe. None: something else.
Descriptor open_in_place(const fs::path& path) {
  if (const auto fd = standard_descriptor(path)) {
    Descriptor copy(::fcntl(*fd, F_DUPFD_CLOEXEC, 0));
    if (copy.get() < 0)
      throw IoError(fmt::format("{}: cannot be written: {}", path.string(), cause_of(errno)));
    return copy;
  }
  struct stat about {};
  if (::lstat(path.c_str(), &about) != 0 || !(S_ISCHR(about.st_mode) || S_ISFIFO(about.st_mode)))
    return Descriptor(-1);
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK));
  if (file.get() < 0 && errno == ENXIO)
    refuse(path, "is a pipe that nobody reads; allowed: a pipe with a reader, or a file");
  if (file.get() < 0)
    throw IoError(fmt::format("{}: cannot be written: {}", path.string(), cause_of(errno)));
  // Writing waits again for whoever reads.
  ::fcntl(file.get(), F_SETFL, ::fcntl(file.get(), F_GETFL) & ~O_NONBLOCK);
  return file;
}

// A claimed output. Two of them are one file where the folders are one and the names are equal.
struct Claim {
  fs::path path;
  std::string flag;
  Descriptor in_place;
  dev_t device = 0;
  ino_t folder = 0;
};

std::mutex claims_mutex;
std::vector<Claim>& claims() {
  static std::vector<Claim> all;
  return all;
}

std::optional<Claim> take_claim(const fs::path& path) {
  const std::lock_guard lock(claims_mutex);
  const auto found = std::ranges::find(claims(), path, &Claim::path);
  if (found == claims().end()) return std::nullopt;
  Claim claim = std::move(*found);
  claims().erase(found);
  return claim;
}

void write_all(int fd, std::string_view text, const auto& fail) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("be written");
    text.remove_prefix(static_cast<size_t>(n));
  }
}

void write_beside(const fs::path& path, std::string_view text) {
  static std::atomic<int> serial = 0;  // several threads may write at once
  std::string temporary;
  int made = -1;
  do {
    temporary = fmt::format("{}.tmp{}-{}", path.string(), getpid(), serial++);
    made = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  } while (made < 0 && errno == EEXIST);
  Descriptor file(made);
  const auto fail = [&](const char* what) {
    const std::string cause = cause_of(errno);
    if (made >= 0) ::unlink(temporary.c_str());
    throw IoError(path.string() + ": cannot " + what + ": " + cause);
  };
  if (made < 0) fail("be written");
  write_all(file.get(), text, fail);
  const bool flushed = ::fsync(file.get()) == 0;
  if ((::close(file.release()) != 0) | !flushed) fail("be flushed");
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("be put in place");
}

}  // namespace

bool is_ours(std::string_view head) {
  head = head.substr(0, kHeadBytes);
  return head.empty() || std::ranges::any_of(kMarks, [&](std::string_view mark) {
           return head.find(mark) != std::string_view::npos;
         });
}

void require_output(const fs::path& path, Existing existing) {
  if (path.empty()) throw InvalidInput("the name of a file to write is empty");
  struct stat about {};
  if (::lstat(path.c_str(), &about) != 0) {
    if (errno == ENOENT) return;
    throw IoError(fmt::format("{}: cannot be written: {}", path.string(), cause_of(errno)));
  }
  if (S_ISLNK(about.st_mode))
    refuse(path,
           "is a symbolic link, and Piper writes through none; allowed: the file that it "
           "leads to, or another name");
  if (S_ISDIR(about.st_mode)) refuse(path, "is a folder; allowed: the name of a file");
  if (!S_ISREG(about.st_mode))
    refuse(path, "is no regular file; allowed: a regular file, a terminal or a pipe");
  require_replaceable(path, about, existing, head_of(path));
}

void replace_foreign_files() { replaces_foreign_files = true; }

bool remove_output(const fs::path& path) {
  struct stat about {};
  if (::lstat(path.c_str(), &about) != 0) return true;
  const bool removes = S_ISREG(about.st_mode) && (replaces_foreign_files || is_ours(head_of(path)));
  if (removes && ::unlink(path.c_str()) != 0 && errno != ENOENT)
    throw IoError(fmt::format("{}: cannot be removed: {}", path.string(), cause_of(errno)));
  return removes;
}

void claim_output(const fs::path& path, std::string_view flag) {
  if (path.empty())
    throw InvalidInput(fmt::format("{} is empty; allowed: the name of a file", flag));
  Claim claim{path, std::string(flag), open_in_place(path), 0, 0};
  if (claim.in_place.get() < 0) require_output(path, Existing::kOurs);
  struct stat folder {};
  if (::stat(path.has_parent_path() ? path.parent_path().c_str() : ".", &folder) == 0) {
    claim.device = folder.st_dev;
    claim.folder = folder.st_ino;
  }
  const std::lock_guard lock(claims_mutex);
  if (claim.in_place.get() < 0)
    for (const Claim& other : claims())
      if (other.path.filename() == path.filename() && other.device == claim.device &&
          other.folder == claim.folder)
        throw InvalidInput(fmt::format("{} and {} both name {}; allowed: a file for each",
                                       other.flag, flag, path.string()));
  claims().push_back(std::move(claim));
}

void write_text_file(const fs::path& path, std::string_view text, Existing existing) {
  PIPER_CHECK(text.empty() || is_ours(text), path.string());
  const std::optional<Claim> claim = take_claim(path);
  const Descriptor opened = claim ? Descriptor(-1) : open_in_place(path);
  const int in_place = claim ? claim->in_place.get() : opened.get();
  if (in_place >= 0) {
    std::fflush(stdout);  // what was printed before it stands before it
    write_all(in_place, text, [&](const char* what) {
      throw IoError(fmt::format("{}: cannot {}: {}", path.string(), what, cause_of(errno)));
    });
    return;
  }
  if (holds(path, text)) return;
  require_output(path, existing);
  write_beside(path, text);
}

std::string json_file_text(const Json& json) {
  Json document{{kWrittenBy, "piper"}};
  document.update(json);
  return to_text(document, 2) + "\n";
}

void write_json_file(const fs::path& path, const Json& json) {
  write_text_file(path, json_file_text(json));
}

bool is_still(const fs::path& path, int fd) {
  struct stat there {};
  struct stat open {};
  return ::lstat(path.c_str(), &there) == 0 && ::fstat(fd, &open) == 0 &&
         there.st_dev == open.st_dev && there.st_ino == open.st_ino;
}

bool holds(const fs::path& path, std::string_view text) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat about {};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode) ||
      about.st_size != static_cast<off_t>(text.size()))
    return false;
  std::string block(size_t{1} << 16, '\0');
  for (ssize_t n = 0; !text.empty(); text.remove_prefix(static_cast<size_t>(n))) {
    n = ::read(file.get(), block.data(), std::min(block.size(), text.size()));
    if (n <= 0 || text.substr(0, static_cast<size_t>(n)) != block.substr(0, static_cast<size_t>(n)))
      return false;
  }
  return true;
}

int open_output(const fs::path& path, Start start, Existing existing) {
  Descriptor file(::open(path.c_str(),
                         O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY |
                             (start == Start::kEnd ? O_APPEND : 0),
                         0644));
  struct stat about {};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0) {
    const int cause = errno;
    require_output(path, existing);  // says it in words where it is the name
    throw IoError(fmt::format("{}: cannot be written: {}", path.string(), cause_of(cause)));
  }
  if (!S_ISREG(about.st_mode)) refuse(path, "is no regular file; allowed: a regular file");
  require_replaceable(path, about, existing, head_of(file.get()));
  if (start == Start::kEmpty && ::ftruncate(file.get(), 0) != 0)
    throw IoError(fmt::format("{}: cannot be written: {}", path.string(), cause_of(errno)));
  return file.release();
}

}  // namespace piper::files
