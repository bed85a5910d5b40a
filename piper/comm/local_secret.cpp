#include <fcntl.h>
#include <fmt/format.h>
#include <piper/comm/local_secret.h>
#include <piper/comm/secret.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <vector>

namespace piper::comm {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSecretBytes = 64;

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

// Whole or not at all under its name: written under another one, then linked.
void make(const fs::path& path) {
  std::string name = path.string() + ".XXXXXX";
  const File file(::mkstemp(name.data()));  // for its owner alone
  if (file.fd() < 0) return;
  const std::string secret = random_secret();
  if (::write(file.fd(), secret.data(), secret.size()) == static_cast<ssize_t>(secret.size()) &&
      ::link(name.c_str(), path.c_str()) != 0) {
    // Another process was first: its file counts.
  }
  ::unlink(name.c_str());
}

std::optional<std::string> read(const fs::path& path) {
  const File file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (file.fd() < 0 || ::fstat(file.fd(), &info) != 0) return std::nullopt;
  const bool is_ours =
      S_ISREG(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 077) == 0;
  std::array<char, kSecretBytes + 1> text{};
  if (!is_ours || ::read(file.fd(), text.data(), text.size()) != kSecretBytes) return std::nullopt;
  return std::string(text.data(), kSecretBytes);
}

// The same for the same run, whatever characters its name has.
std::string file_name(const std::string& run) {
  const Digest digest = hmac("piper", std::as_bytes(std::span(run)));
  std::string name = fmt::format("piper-{}-", ::geteuid());
  for (size_t i = 0; i < 16; ++i) name += fmt::format("{:02x}", static_cast<unsigned>(digest[i]));
  return name;
}

}  // namespace

std::optional<LocalSecret> local_secret(const std::string& run) {
  std::vector<fs::path> folders{"/dev/shm", "/tmp"};
  if (const char* own = std::getenv("XDG_RUNTIME_DIR"))  // NOLINT(concurrency-mt-unsafe)
    folders.insert(folders.begin(), own);
  for (const fs::path& folder : folders) {
    const fs::path path = folder / file_name(run);
    if (auto there = read(path)) return LocalSecret{*there, path};
    make(path);
    if (auto made = read(path)) return LocalSecret{*made, path};
  }
  return std::nullopt;
}

}  // namespace piper::comm
