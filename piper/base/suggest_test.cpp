#include <doctest/doctest.h>
#include <piper/base/suggest.h>

#include <vector>

using namespace piper;

TEST_CASE("a typing error gets a suggestion and a foreign word does not") {
  const std::vector<std::string> words = {"model", "cluster", "plan", "estimate"};
  CHECK(nearest("modle", words) == "model");
  CHECK(nearest("clusters", words) == "cluster");
  CHECK(nearest("zebra-crossing", words) == "");
  CHECK(did_you_mean("plna", words) == "; did you mean 'plan'?");
  CHECK(nearest("x", words) == "");
  CHECK(nearest(std::string(5000, 'p'), words) == "");
}

TEST_CASE("names that contain the typed word come before those that a typing error makes of it") {
  const std::vector<std::string> clusters = {"b200",     "dgx-a100", "dgx-h100",
                                             "dgx-h200", "h100-efa", "h800"};
  CHECK(nearest("h100", clusters) == "dgx-h100");
  CHECK(nearest("h20", clusters) == "dgx-h200");
  CHECK(nearest("h80", clusters) == "h800");
  CHECK(nearest("h900", clusters) == "h800");  // no name contains it
  CHECK(nearest("dgx-h10", clusters) == "dgx-h100");
  // Two letters, dashes aside, are in too many names to mean one.
  const std::vector<std::string> flags = {"--expert-placement", "--ep", "--sequence-parallel"};
  CHECK(nearest("--e", flags) == "--ep");
  CHECK(nearest("--seq", flags) == "--sequence-parallel");
  CHECK(nearest("", flags) == "");
  CHECK(nearest("---", flags) == nearest("--", flags));
}
