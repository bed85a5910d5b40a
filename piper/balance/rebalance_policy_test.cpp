#include <doctest/doctest.h>
#include <piper/balance/rebalance_policy.h>
#include <piper/base/error.h>

#include <string>

using namespace piper;
using namespace piper::balance;

TEST_CASE("a policy is read from its word and number, and written as it was") {
  for (const std::string text :
       {"off", "threshold:1.3", "price", "replicate", "shadow", "random:0.25"})
    CHECK(to_text(parse_rebalance(text, "--rebalance")) == text);
  CHECK(!parse_rebalance("off", "--rebalance").is_on());
  CHECK(parse_rebalance("threshold:1.3", "--rebalance").number == 1.3);
}

TEST_CASE("a policy that is none is refused in one line that says what is allowed") {
  for (const std::string text :
       {"", "on", "threshold", "threshold:", "threshold:0.9", "threshold:1.3x", "threshold:nan",
        "price:2", "random:2", "off:"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(
        parse_rebalance(text, "--rebalance"),
        ("--rebalance is '" + text +
         "'; allowed: off, threshold:X with X from 1 to 1000000, price, replicate, "
         "shadow, random:X "
         "with X from 0.001 to 1")
            .c_str(),
        InvalidInput);
  }
}

TEST_CASE("policies of copies need slots for them, the others none") {
  CHECK(contradiction(parse_rebalance("off", ""), 8).empty());
  CHECK(contradiction(parse_rebalance("price", ""), 0).empty());
  CHECK(contradiction(parse_rebalance("replicate", ""), 8).empty());
  CHECK(
      contradiction(parse_rebalance("shadow", ""), 0) ==
      "--rebalance is shadow, but no slots hold copies of experts; allowed: off, threshold, price "
      "and random, or a strategy with --redundant-experts");
  CHECK(contradiction(parse_rebalance("threshold:1.2", ""), 8) ==
        "--rebalance is threshold:1.2 beside --redundant-experts 8: homes of experts that have "
        "copies "
        "stay; allowed: off, replicate and shadow");
}
