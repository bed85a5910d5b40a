#include <doctest/doctest.h>
#include <piper/plan/split.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace piper::plan {
namespace {

double heaviest(const std::vector<double>& seconds, double first, double last,
                const std::vector<double>& slowness, const std::vector<int64_t>& split) {
  double worst = 0;
  size_t layer = 0;
  for (size_t stage = 0; stage < split.size(); ++stage) {
    double load = (stage == 0 ? first : 0) + (stage + 1 == split.size() ? last : 0);
    for (int64_t i = 0; i < split[stage]; ++i) load += seconds[layer++];
    worst = std::max(worst, slowness.empty() ? load : load * slowness[stage]);
  }
  return worst;
}

// The plain version: every way to cut.
double best_of_all(const std::vector<double>& seconds, double first, double last,
                   const std::vector<double>& slowness, std::vector<int64_t>& split, size_t stage,
                   int64_t left) {
  if (stage + 1 == split.size()) {
    split[stage] = left;
    return heaviest(seconds, first, last, slowness, split);
  }
  double best = 1e300;
  for (int64_t n = 1; n <= left - static_cast<int64_t>(split.size() - stage - 1); ++n) {
    split[stage] = n;
    best = std::min(best, best_of_all(seconds, first, last, slowness, split, stage + 1, left - n));
  }
  return best;
}

}  // namespace

TEST_CASE("the balanced split is as good as the best of all splits") {
  for (const int64_t layers : {1, 4, 7, 9})
    for (const int64_t pp : {1, 2, 3, 4}) {
      if (pp > layers) continue;
      for (const auto& [last, slow] : {std::pair(0.0, 1.0), {1.5, 1.0}, {6.0, 1.0}, {1.5, 2.5}}) {
        std::vector<double> slowness;  // every second stage
        for (int64_t stage = 0; slow != 1 && stage < pp; ++stage)
          slowness.push_back(stage % 2 == 0 ? 1 : slow);
        CAPTURE(slow);
        CAPTURE(layers);
        CAPTURE(pp);
        CAPTURE(last);
        std::vector<double> seconds;
        for (int64_t i = 0; i < layers; ++i)
          seconds.push_back(1 + 0.3 * static_cast<double>(i * i % 5));
        const std::vector<int64_t> split = balanced_split(seconds, 0.2, last, pp, slowness);
        CHECK(std::accumulate(split.begin(), split.end(), int64_t{0}) == layers);
        CHECK(*std::ranges::min_element(split) >= 1);
        std::vector<int64_t> scratch(static_cast<size_t>(pp));
        CHECK(heaviest(seconds, 0.2, last, slowness, split) ==
              cost::near(best_of_all(seconds, 0.2, last, slowness, scratch, 0, layers)));
      }
    }
}

TEST_CASE("the stage with the head gets fewer layers, and so does a slow one") {
  CHECK(balanced_split(std::vector<double>(8, 1.0), 0, 2, 2) == std::vector<int64_t>{5, 3});
  CHECK(balanced_split(std::vector<double>(9, 1.0), 0, 0, 2, {2, 1}) == std::vector<int64_t>{3, 6});
}

}  // namespace piper::plan
