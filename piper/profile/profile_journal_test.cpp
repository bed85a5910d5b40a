#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/profile/profile_journal.h>
#include <unistd.h>

#include <fstream>

using namespace piper;
using piper::profile::ProfileJournal;

namespace {

// A file of this test alone, gone at its end.
struct PartialFile {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("piper_journal_" + std::to_string(getpid()) + ".partial");
  PartialFile() { std::filesystem::remove(path); }
  ~PartialFile() { std::filesystem::remove(path); }
  void append(const std::string& text) const { std::ofstream(path, std::ios::app) << text; }
};

const Json kHere{{"device", "a processor"}, {"ranks", 4}, {"tight", 0.02}};

cluster::Timing timing(double seconds) {
  return {seconds, seconds / 2, seconds * 2, seconds * 9, 31, 2};
}

std::string refusal(const std::filesystem::path& path, const Json& with) {
  try {
    ProfileJournal journal(path, with);
  } catch (const InvalidInput& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a second profile finds what the first one measured, point by point") {
  const PartialFile file;
  {
    ProfileJournal journal(file.path, kHere);
    CHECK(journal.num_restored() == 0);
    journal.add("gemm.fp32", {8, 32, 32}, timing(0.1 + 0.2));
    journal.add("all-to-all", {256}, timing(2e-5));
  }
  ProfileJournal journal(file.path, kHere);
  CHECK(journal.num_restored() == 2);
  const auto known = journal.find("gemm.fp32", {8, 32, 32});
  REQUIRE(known.has_value());
  CHECK(known->seconds == 0.1 + 0.2);  // to the last bit
  CHECK(known->worst_seconds == timing(0.1 + 0.2).worst_seconds);
  CHECK(known->num_outliers == 2);
  CHECK_FALSE(journal.find("gemm.fp32", {8, 32, 64}).has_value());
  CHECK_FALSE(journal.find("gemm.bf16", {8, 32, 32}).has_value());
  journal.add("copy", {1}, timing(1));
  CHECK(ProfileJournal(file.path, kHere).num_restored() == 3);
}

TEST_CASE(
    "a line cut off by a crash is measured again, and what follows is written on a line of its "
    "own") {
  const PartialFile file;
  ProfileJournal(file.path, kHere).add("copy", {1}, timing(1));
  for (const char* torn : {"{\"curve\": \"copy\", \"at\": [2], \"sec", "{\"curve\": \"copy\"}\n"}) {
    file.append(torn);
    ProfileJournal journal(file.path, kHere);
    CHECK(journal.num_restored() == 1);
    journal.add("copy", {3}, timing(3));
    CHECK(ProfileJournal(file.path, kHere).num_restored() == 2);
    std::filesystem::remove(file.path);
    ProfileJournal(file.path, kHere).add("copy", {1}, timing(1));
  }
}

TEST_CASE("points of other options or another machine are refused, with the first difference") {
  const PartialFile file;
  ProfileJournal(file.path, kHere).add("copy", {1}, timing(1));
  Json other = kHere;
  other["ranks"] = 2;
  const std::string text = refusal(file.path, other);
  INFO(text);
  CHECK(text.find("another machine: 'ranks' was 4 then and is 2 now") != std::string::npos);
  CHECK(text.find("--fresh") != std::string::npos);
  other = kHere;
  other["full"] = true;
  CHECK(refusal(file.path, other).find("'full' was null then and is true now") !=
        std::string::npos);
}

TEST_CASE("a file that is something else is refused, not overwritten") {
  const PartialFile file;
  file.append("{\"name\": \"here\"}\n");
  CHECK(refusal(file.path, kHere).find("is no partial file of piper profile") != std::string::npos);
  CHECK(read_text_file(file.path) == "{\"name\": \"here\"}\n");
}

TEST_CASE("without a path nothing is kept and nothing found") {
  ProfileJournal journal;
  journal.add("copy", {1}, timing(1));
  CHECK_FALSE(journal.find("copy", {1}).has_value());
}
