#include <doctest/doctest.h>
#include <piper/cost/token_spread.h>
#include <piper/model/import.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>
#include <random>
#include <vector>

namespace piper::cost {
namespace {

model::FeedForward experts(int64_t num, int64_t k, int64_t groups = 1, int64_t top_groups = 1) {
  model::FeedForward f;
  f.num_experts = num;
  f.top_k = k;
  f.num_groups = groups;
  f.top_groups = top_groups;
  return f;
}

// By drawing: the part of the tokens with an expert among the first `held`.
double drawn(const model::FeedForward& f, int64_t held) {
  std::mt19937 random(5);
  constexpr int kTokens = 40000;
  int hits = 0;
  std::vector<int64_t> groups(static_cast<size_t>(f.num_groups));
  for (int t = 0; t < kTokens; ++t) {
    for (size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int64_t>(i);
    std::ranges::shuffle(groups, random);
    std::vector<int64_t> open;
    const int64_t of_group = f.num_experts / f.num_groups;
    for (int64_t g = 0; g < f.top_groups; ++g)
      for (int64_t e = 0; e < of_group; ++e)
        open.push_back(groups[static_cast<size_t>(g)] * of_group + e);
    std::ranges::shuffle(open, random);
    hits += std::any_of(open.begin(), open.begin() + f.top_k, [&](int64_t e) { return e < held; });
  }
  return hits / static_cast<double>(kTokens);
}

}  // namespace

TEST_CASE("a token is on a unit as often as experts are drawn there") {
  CHECK(chance_on_unit(experts(64, 1), 16) == near(0.25));
  CHECK(chance_on_unit(experts(8, 2), 4) == near(1 - 4.0 * 3 / (8 * 7)));
  CHECK(chance_on_unit(experts(8, 8), 1) == near(1));
  CHECK(chance_on_unit(experts(0, 0), 1) == 0);
  for (const auto& f : {experts(64, 8), experts(64, 6, 8, 3), experts(32, 4, 4, 1),
                        experts(256, 8, 8, 4), experts(64, 8, 8, 8)})
    for (const int64_t held : {2, 8, 16, 20, 48, 64}) {
      if (held > f.num_experts) continue;
      CAPTURE(f.num_experts);
      CAPTURE(f.num_groups);
      CAPTURE(held);
      CHECK(std::abs(chance_on_unit(f, static_cast<double>(held)) - drawn(f, held)) < 0.012);
    }
}

TEST_CASE("the spread of a group: eight experts of 64 on four nodes, and of DeepSeek-V3 on eight") {
  const DedupRatios four = expected_spread(experts(64, 8), 32, 8, 4096);
  // 4 (1 - C(48, 8) / C(64, 8)) = 3.66 nodes.
  CHECK(8 / (8 * four.across) == near(2.19).epsilon(2e-3));
  CHECK(four.inside > four.across);
  CHECK(four.inside <= 1);
  const model::FeedForward v3 = model::load_model("deepseek-v3").layers.back().feed_forward;
  REQUIRE(v3.top_groups == 4);
  // Never on more than four of eight nodes.
  CHECK(8 * expected_spread(v3, 64, 8, 1).across < 4);
  CHECK(8 * expected_spread(v3, 64, 8, 1).across > 3.5);
  CHECK(expected_spread(experts(64, 8), 1, 1, 4096) == DedupRatios{});
}

}  // namespace piper::cost
