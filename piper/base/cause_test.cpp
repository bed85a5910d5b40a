#include <doctest/doctest.h>
#include <piper/base/cause.h>
#include <sys/resource.h>

#include <cerrno>
#include <string>

namespace piper {

TEST_CASE("a limit that was reached is named with its value") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 77;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  CHECK(cause_of(EMFILE) ==
        "Too many open files: this process may have 77; raise that with `ulimit -n`");
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(cause_of(ENFILE).find("fs.file-max") != std::string::npos);
  CHECK(cause_of(EAGAIN).find("(ulimit -u)") != std::string::npos);
  CHECK(cause_of(ENOMEM).find("emory") != std::string::npos);
  CHECK(cause_of(ENOENT) == "No such file or directory");
  const std::system_error thrown(EMFILE, std::system_category(), "a socket");
  CHECK(cause_of(thrown) == "a socket: " + cause_of(EMFILE));
  CHECK(cause_of(std::runtime_error("another")) == "another");
}

}  // namespace piper
