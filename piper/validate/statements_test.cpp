#include <doctest/doctest.h>
#include <piper/validate/statements.h>

#include <algorithm>
#include <cmath>

using namespace piper;
using namespace piper::validate;

namespace {

const Statement& about(const std::vector<Statement>& all, const std::string& what) {
  const auto found = std::ranges::find_if(
      all, [&](const Statement& s) { return s.what.find(what) != std::string::npos; });
  REQUIRE(found != all.end());
  return *found;
}

}  // namespace

TEST_CASE("what the paper states is computed, and each misprint and miss names its cause") {
  const std::vector<Statement> all = paper_statements();
  CHECK(all.size() > 30);
  for (const Statement& s : all) {
    CAPTURE(s.what);
    const bool off = s.verdict == Verdict::kMisprint || s.verdict == Verdict::kMiss;
    CHECK(s.cause.empty() != off);
    if (s.error && s.verdict == Verdict::kHolds) CHECK(std::abs(*s.error) <= s.limit);
    if (s.verdict == Verdict::kMisprint) CHECK_FALSE(s.measured);
  }
}

TEST_CASE("one constant, fitted to one point, and the other measured points within 10 %") {
  const std::vector<Statement> all = paper_statements();
  const Statement& fitted = about(all, "862 B on 512 GPUs");
  CHECK(fitted.verdict == Verdict::kFitted);
  CHECK(std::abs(*fitted.error) < 0.005);
  CHECK(std::ranges::count(all, Verdict::kFitted, &Statement::verdict) == 1);
  for (const char* what : {"1.7 T on 1,024", "rate a GPU on 1,024 over 512", "weak scaling",
                           "MFU at 862 B", "large experts", "whole model over"}) {
    CAPTURE(what);
    CHECK(about(all, what).verdict == Verdict::kHolds);
  }
}

TEST_CASE(
    "the batch that the paper leaves out decides: with too few micro-batches 73 % is missed") {
  CHECK(about(paper_statements(), "64 to 1,024, were it 64").verdict == Verdict::kMiss);
}
