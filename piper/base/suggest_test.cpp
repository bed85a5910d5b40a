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
