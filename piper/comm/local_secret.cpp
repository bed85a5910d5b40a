#include <fcntl.h>
#include <fmt/format.h>
#include <piper/comm/local_secret.h>
#include <piper/comm/secret.h>
#include <piper/files/output.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

namespace piper::comm {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSecretBytes = 64;
constexpr size_t kNameBytes = 16;  // of a run's digest

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

std::string own_prefix() { return fmt::format("piper-{}-", ::geteuid()); }

// The same for the same run, whatever characters its name has.
std::string file_name(const std::string& run) {
  const Digest digest = hmac("piper", std::as_bytes(std::span(run)));
  std::string name = own_prefix();
  for (size_t i = 0; i < kNameBytes; ++i)
    name += fmt::format("{:02x}", static_cast<unsigned>(digest[i]));
  return name;
}

bool is_hexadecimal(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Whether a file is named and made as make() does it: nothing else is ever removed.
bool is_made_here(const std::string& name, int fd) {
  const std::string prefix = own_prefix();
  struct stat about {};
  if (!name.starts_with(prefix) || name.size() != prefix.size() + 2 * kNameBytes ||
      !is_hexadecimal(std::string_view(name).substr(prefix.size())) || ::fstat(fd, &about) != 0 ||
      !S_ISREG(about.st_mode) || about.st_uid != ::geteuid() || (about.st_mode & 077) != 0)
    return false;
  std::array<char, kSecretBytes + 1> text{};
  return ::pread(fd, text.data(), text.size(), 0) == kSecretBytes &&
         is_hexadecimal({text.data(), kSecretBytes});
}

// Removes those that no process holds.
void sweep(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(own_prefix())) continue;
    const File file(::open(entry.path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file.fd() >= 0 && is_made_here(name, file.fd()) &&
        ::flock(file.fd(), LOCK_EX | LOCK_NB) == 0 && files::is_still(entry.path(), file.fd()))
      ::unlink(entry.path().c_str());
  }
}

// Whole or not at all under its name: written and locked under another one, then linked.
std::optional<LocalSecret> make(const fs::path& path) {
  std::string name = path.string() + ".XXXXXX";
  auto file = std::make_shared<File>(::mkostemp(name.data(), O_CLOEXEC));  // for its owner alone
  if (file->fd() < 0) return std::nullopt;
  const std::string secret = random_secret();
  const bool made =
      ::flock(file->fd(), LOCK_SH | LOCK_NB) == 0 && files::is_still(name, file->fd()) &&
      ::write(file->fd(), secret.data(), secret.size()) == static_cast<ssize_t>(secret.size()) &&
      ::link(name.c_str(), path.c_str()) == 0;  // else another process was first: its file counts
  ::unlink(name.c_str());
  if (!made) return std::nullopt;
  return LocalSecret{.text = secret, .file = path, .held = std::move(file)};
}

std::optional<LocalSecret> read(const fs::path& path) {
  auto file =
      std::make_shared<File>(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (file->fd() < 0 || ::fstat(file->fd(), &info) != 0) return std::nullopt;
  const bool is_ours =
      S_ISREG(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 077) == 0;
  if (!is_ours || ::flock(file->fd(), LOCK_SH) != 0 || !files::is_still(path, file->fd()))
    return std::nullopt;  // or swept meanwhile
  std::array<char, kSecretBytes + 1> text{};
  if (::read(file->fd(), text.data(), text.size()) != kSecretBytes) return std::nullopt;
  return LocalSecret{.text = {text.data(), kSecretBytes}, .file = path, .held = std::move(file)};
}

}  // namespace

std::optional<LocalSecret> local_secret(const std::string& run) {
  std::vector<fs::path> folders{"/dev/shm", "/tmp"};
  if (const char* own = std::getenv("XDG_RUNTIME_DIR"))  // NOLINT(concurrency-mt-unsafe)
    folders.insert(folders.begin(), own);
  constexpr int kTries = 8;  // processes that start at the same time may be in each other's way
  for (const fs::path& folder : folders) {
    const fs::path path = folder / file_name(run);
    sweep(folder);
    for (int i = 0; i < kTries; ++i) {
      if (auto there = read(path)) return there;
      if (auto made = make(path)) return made;
    }
  }
  return std::nullopt;
}

}  // namespace piper::comm
