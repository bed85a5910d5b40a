#include <doctest/doctest.h>
#include <fcntl.h>
#include <piper/base/error.h>
#include <piper/base/file_reader.h>
#include <piper/base/json.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <string>

namespace piper {
namespace {

namespace fs = std::filesystem;

// A folder for one test, removed when it ends.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("piper-base-test-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const char* name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void make_socket(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.string().size() < sizeof(address.sun_path));
  std::strcpy(address.sun_path, path.c_str());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  ::close(fd);
}

// The refusal, which must come at once.
std::string refusal(const fs::path& path) {
  const auto start = std::chrono::steady_clock::now();
  std::string what = "taken";
  try {
    read_text_file(path);
  } catch (const InvalidInput& error) {
    what = error.what();
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  return what;
}

TEST_CASE("what is no regular file is refused at once, by name, with what is allowed") {
  const Folder folder;
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  make_socket(folder / "socket");
  fs::create_symlink(folder / "fifo", folder / "link");
  for (const auto& [path, kind] : {std::pair(folder / "fifo", "a pipe"),
                                   {folder / "link", "a pipe"},
                                   {folder / "socket", "a socket"},
                                   {fs::path("/dev/zero"), "a device"},
                                   {fs::path("/dev/null"), "a device"},
                                   {folder.path(), "a folder"}})
    CHECK(refusal(path) == path.string() + ": is " + kind + "; allowed: a regular file");
}

TEST_CASE("a link to a regular file is followed; a file that is absent is named") {
  const Folder folder;
  std::ofstream(folder / "text") << "abcdef";
  fs::create_symlink(folder / "text", folder / "link");
  CHECK(read_text_file(folder / "link") == "abcdef");
  const FileReader file(folder / "link");
  std::string part(3, '\0');
  file.read(2, part.data(), 3);
  CHECK(part == "cde");
  CHECK(file.size() == 6);
  CHECK_THROWS_WITH_AS(
      read_text_file(folder / "none"),
      ((folder / "none").string() + ": cannot be read: No such file or directory").c_str(),
      IoError);
  CHECK_THROWS_WITH_AS(
      read_text_file(folder / "text", 5),
      ((folder / "text").string() + ": is 6 bytes long; at most 5 are read").c_str(), IoError);
}

TEST_CASE("a file that becomes shorter while it is read is an error, not a signal") {
  const Folder folder;
  std::ofstream(folder / "text") << std::string(100000, 'x');
  const FileReader file(folder / "text");
  fs::resize_file(folder / "text", 50000);
  std::string bytes(60000, '\0');
  CHECK_THROWS_WITH_AS(
      file.read(0, bytes.data(), 60000),
      ((folder / "text").string() + ": cannot be read at byte 50000: the file has become shorter")
          .c_str(),
      IoError);
}

TEST_CASE("what was opened is an input by whatever name, as long as it is there") {
  const Folder folder;
  std::ofstream(folder / "opened") << "abc";
  const auto about = [](const fs::path& path) {
    struct stat found {};
    REQUIRE(::stat(path.c_str(), &found) == 0);
    return found;
  };
  CHECK_FALSE(is_input(about(folder / "opened")));
  read_text_file(folder / "opened");
  fs::create_hard_link(folder / "opened", folder / "opened too");
  CHECK(is_input(about(folder / "opened too")));
  const struct stat old = about(folder / "opened");
  fs::remove(folder / "opened");
  CHECK_FALSE(is_input(old));
}

}  // namespace
}  // namespace piper
