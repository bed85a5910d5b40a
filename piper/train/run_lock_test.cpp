#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/train/run_lock.h>
#include <sys/stat.h>
#include <tests/test_folder.h>

#include <cerrno>
#include <string>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

std::string refusal(const fs::path& folder) {
  try {
    const RunLock lock(folder);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a lock that is a symbolic link is refused, and what it leads to is untouched") {
  const piper::testing::TestFolder folder;
  const fs::path victim = folder.write("thesis.txt", "process of years on paper");
  fs::create_directories(folder.path() / "run");
  fs::create_symlink(victim, folder.path() / "run/lock");
  CHECK(refusal(folder.path() / "run").find("lock: is a symbolic link") != std::string::npos);
  fs::remove(folder.path() / "run/lock");
  fs::create_symlink(folder.path() / "nowhere", folder.path() / "run/lock");
  CHECK(refusal(folder.path() / "run").find("lock: is a symbolic link") != std::string::npos);
  CHECK_FALSE(fs::exists(folder.path() / "nowhere"));
  CHECK(read_text_file(victim) == "process of years on paper");
}

TEST_CASE("a lock that is no regular file, or that Piper did not write, is refused at once") {
  const piper::testing::TestFolder folder;
  const fs::path lock = folder.path() / "lock";
  REQUIRE(::mkfifo(lock.c_str(), 0600) == 0);
  CHECK(refusal(folder.path()).find("lock: is no regular file") != std::string::npos);
  fs::remove(lock);
  fs::create_directory(lock);
  CHECK(refusal(folder.path()).find("lock: is no regular file") != std::string::npos);
  fs::remove(lock);
  const fs::path notes = folder.write("notes.txt", "my notes\n");
  fs::create_hard_link(notes, lock);
  CHECK(refusal(folder.path()).find("lock: holds something that Piper did not write") !=
        std::string::npos);
  CHECK(read_text_file(notes) == "my notes\n");
}

TEST_CASE("a lock is held until its run ends, and the next run takes it over") {
  const piper::testing::TestFolder folder;
  {
    const RunLock first(folder.path());
    CHECK(first.warning().empty());
    CHECK(refusal(folder.path()).find("is in use: process ") != std::string::npos);
  }
  CHECK(refusal(folder.path()).empty());
  folder.write("lock", "");  // of a run that was killed between making and writing it
  CHECK(refusal(folder.path()).empty());
}

TEST_CASE("a file system without locks is said, whatever it answers") {
  for (const int error : {ENOLCK, EOPNOTSUPP, ENOSYS, EINVAL}) {
    const piper::testing::TestFolder folder;
    const RunLock lock(folder.path(), [&](int, int) {
      errno = error;
      return -1;
    });
    CHECK(lock.warning().find("lock: the file system has no locks (") != std::string::npos);
    CHECK(lock.warning().find("watch that no second run uses this folder") != std::string::npos);
  }
  const piper::testing::TestFolder folder;
  int calls = 0;
  const RunLock lock(folder.path(), [&](int, int) {
    errno = EINTR;  // a signal is no answer
    return ++calls < 3 ? -1 : 0;
  });
  CHECK(calls == 3);
  CHECK(lock.warning().empty());
}

}  // namespace
}  // namespace piper::train
