#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/data/text.h>
#include <testing/data/test_text.h>
#include <tests/test_folder.h>

namespace piper::data {
namespace {

namespace fs = std::filesystem;

Text text_below(const fs::path& path) { return {text_files(path), path.string()}; }

TEST_CASE("a folder is read in the order of its paths") {
  const testing::TestFolder folder;
  folder.write("b.txt", "B");
  folder.write("a/z.txt", "Z");
  folder.write("a/c.md", "C");
  folder.write("a.txt", "A");
  folder.write("empty.txt", "");
  CHECK(bytes_of(text_below(folder.path())) ==
        "ACZB");  // a.txt < a/c.md < a/z.txt < b.txt: '.' sorts before '/'
  CHECK(bytes_of(text_below(folder.path() / "b.txt")) == "B");
  CHECK(text_below(folder.path() / "b.txt").source() == (folder.path() / "b.txt").string());
}

TEST_CASE("nothing to read is an error that names the path") {
  const testing::TestFolder folder;
  folder.write("empty.txt", "");
  const std::string path = folder.path().string();
  CHECK_THROWS_WITH_AS(text_below(folder.path() / "x"),
                       (path + "/x: cannot be read: no such file or folder").c_str(), InvalidInput);
  CHECK_THROWS_WITH_AS(text_below(folder.path()),
                       (path + ": is empty; text to train on is expected").c_str(), InvalidInput);
  fs::create_directory(folder.path() / "none");
  CHECK_THROWS_WITH_AS(text_below(folder.path() / "none"), (path + "/none: holds no file").c_str(),
                       InvalidInput);
  CHECK_THROWS_AS(read_own_text(folder.path()), IoError);
}

TEST_CASE("the default text is the project's own files, without what is built or fetched") {
  const testing::TestFolder folder;
  folder.write("README.md", "read me ");
  folder.write("docs/architecture.md", "docs ");
  folder.write("piper/graph/graph.h", "graph ");
  folder.write("piper/base/error.h", "error ");
  folder.write("piper/build/x.o", "object ");
  folder.write("piper/.git/config", "git ");
  folder.write("build/y.o", "object ");
  CHECK(bytes_of(read_own_text(folder.path())) == "read me docs error graph ");
}

TEST_CASE("a text with bytes outside the vocabulary is refused") {
  CHECK_NOTHROW(check_vocabulary(Text("\xff", "t"), 256));
  CHECK_THROWS_WITH_AS(
      check_vocabulary(Text("a\xff", "t"), 255),
      "t: byte 255 at offset 1 is no token of a vocabulary of 255; byte text needs 256",
      InvalidInput);
}

}  // namespace
}  // namespace piper::data
