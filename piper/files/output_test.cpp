#include <doctest/doctest.h>
#include <fcntl.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/files/file_writer.h>
#include <piper/files/output.h>
#include <sys/stat.h>
#include <tests/test_folder.h>
#include <unistd.h>

#include <functional>

namespace piper::files {
namespace {

namespace fs = std::filesystem;
using piper::testing::TestFolder;

constexpr const char* kText = "# written by piper\nrank 0\n";

// What is said, or "" where nothing is refused.
std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

TEST_CASE("every way to write refuses a link, an input, a folder, a socket; what is there stays") {
  const TestFolder folder;
  const fs::path target = folder.write("target", kText), input = folder.write("input", kText);
  fs::create_symlink(target, folder.path() / "link");
  fs::create_symlink(folder.path() / "nothing", folder.path() / "broken");
  fs::create_directory(folder.path() / "folder");
  fs::create_hard_link(input, folder.path() / "twin");
  read_text_file(input);
  const struct {
    const char* name;
    const char* says;
  } places[] = {{"link", "is a symbolic link"},
                {"broken", "is a symbolic link"},
                {"folder", "is a folder"},
                {"input", "is read by this command"},
                {"twin", "is read by this command"}};
  for (const auto& place : places) {
    CAPTURE(place.name);
    const fs::path path = folder.path() / place.name;
    const std::function<void()> ways[] = {
        [&] { claim_output(path, "--out"); },
        [&] { write_text_file(path, "# written by piper\nother\n"); },
        [&] {
          write_json_file(path, Json{{"a", 1}});
        },
        [&] { ::close(open_output(path, Start::kEmpty, Existing::kAny)); },
        [&] { FileWriter(path).write("other"); }};
    for (const auto& way : ways) CHECK(says(refusal_of(way), place.says));
  }
  CHECK(read_text_file(target) == kText);
  CHECK(read_text_file(input) == kText);
  CHECK_FALSE(fs::exists(folder.path() / "nothing"));
  // A folder on the way may be a link: runs on a scratch file system are.
  fs::create_directory_symlink(folder.path() / "folder", folder.path() / "scratch");
  write_text_file(folder.path() / "scratch" / "x", kText);
  CHECK(fs::exists(folder.path() / "folder" / "x"));
}

TEST_CASE("what Piper did not write stays; what it wrote, or is empty, is replaced") {
  const TestFolder folder;
  const fs::path notes = folder.write("notes", "my notes\n"), empty = folder.write("empty", "");
  for (const char* text : {kText, "{\n  \"written_by\": \"piper\"}\n", "<!-- written by piper -->",
                           "#!/bin/sh\n# x\n# Written by piper export. Run it\n",
                           "{\"piper_profile\": 1, \"measured_with\": {}}\n"})
    CHECK(is_ours(text));
  CHECK_FALSE(is_ours("my notes\n"));
  CHECK_FALSE(is_ours(std::string(5000, ' ') + kText));  // not in its head
  CHECK(says(refusal_of([&] { write_text_file(notes, kText); }), "was not written by Piper"));
  CHECK(says(refusal_of([&] { claim_output(notes, "--out"); }), "--force"));
  CHECK_FALSE(remove_output(notes));
  CHECK(read_text_file(notes) == "my notes\n");
  write_text_file(empty, kText);
  write_json_file(empty, Json{{"a", "run\xff"}});
  const struct stat before = [&] {
    struct stat about {};
    REQUIRE(::stat(empty.c_str(), &about) == 0);
    return about;
  }();
  write_json_file(empty, Json{{"a", "run\xff"}});  // the same bytes: nothing is written
  struct stat after {};
  REQUIRE(::stat(empty.c_str(), &after) == 0);
  CHECK(before.st_ino == after.st_ino);
  const Json read = read_json_file(empty);
  CHECK(read.begin().key() == kWrittenBy);
  CHECK(read["a"] == "run\xff");
  CHECK(says(refusal_of([&] { write_json_file(empty, Json{{"a", 2}}); }), "is read by"));
  CHECK(remove_output(empty));
  CHECK_FALSE(fs::exists(empty));
  CHECK(remove_output(empty));
  // Texts that do not say whose they are cannot be written at all.
  CHECK_THROWS_AS(write_text_file(folder.path() / "new", "rank 0\n"), InternalError);
}

TEST_CASE("two outputs of one command have two names, however they are spelt") {
  const TestFolder folder;
  fs::create_directory_symlink(folder.path(), folder.path() / "here");
  claim_output(folder.path() / "a", "--rankfile");
  CHECK(says(refusal_of([&] { claim_output(folder.path() / "here" / "a", "--hostfile"); }),
             "--rankfile and --hostfile both name"));
  claim_output(folder.path() / "b", "--hostfile");
  write_text_file(folder.path() / "a", kText);
  claim_output(folder.path() / "a", "--again");  // the first is written
}

TEST_CASE("a terminal, a device or a pipe with a reader is written in place, and stays") {
  const TestFolder folder;
  const fs::path fifo = folder.path() / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(says(refusal_of([&] { claim_output(fifo, "--out"); }), "is a pipe that nobody reads"));
  const int reader = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  claim_output(fifo, "--out");
  write_text_file(fifo, kText);
  char text[64] = {};
  CHECK(::read(reader, text, sizeof text) == static_cast<ssize_t>(std::string(kText).size()));
  CHECK(std::string(text) == kText);
  ::close(reader);
  CHECK(fs::is_fifo(fifo));
  CHECK_THROWS_WITH_AS(write_text_file("/dev/full", kText),
                       "/dev/full: cannot be written: No space left on device", IoError);
  CHECK(fs::is_character_file("/dev/full"));
  // What a shell has opened is written where it stands, whatever it is.
  const fs::path opened = folder.write("opened", "my notes\n");
  const int fd = ::open(opened.c_str(), O_WRONLY | O_APPEND);
  write_text_file("/dev/fd/" + std::to_string(fd), kText);
  ::close(fd);
  CHECK(read_text_file(opened) == std::string("my notes\n") + kText);
  CHECK_THROWS_AS(write_text_file("/nonexistent/x", kText), IoError);
}

TEST_CASE("a file that grows: at its end, from its beginning; whether it is still there") {
  const TestFolder folder;
  const fs::path path = folder.path() / "grows";
  const auto add = [&](Start start, std::string_view text) {
    const int fd = open_output(path, start, Existing::kOurs);
    REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    return fd;
  };
  ::close(add(Start::kEmpty, kText));
  ::close(add(Start::kEnd, "rank 1\n"));
  CHECK(holds(path, std::string(kText) + "rank 1\n"));
  CHECK_FALSE(holds(path, std::string(kText) + "rank 2\n"));
  const int fd = add(Start::kEmpty, kText);
  CHECK(is_still(path, fd));
  fs::rename(path, folder.path() / "moved");
  CHECK_FALSE(is_still(path, fd));
  fs::create_symlink(folder.path() / "moved", path);
  CHECK_FALSE(is_still(path, fd));
  ::close(fd);
}

}  // namespace
}  // namespace piper::files
