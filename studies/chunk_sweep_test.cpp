// Counts of chunks over the settings of three papers, by price.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <studies/chunk_sweep.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

namespace piper::studies {
namespace {

using enum ChunkRange;
using strategy::MoeSchedule;
using enum strategy::MoeSchedule;

const ChunkSweep& swept(ChunkRange range, MoeSchedule schedule) {
  static std::map<std::pair<ChunkRange, MoeSchedule>, ChunkSweep> sweeps;
  const auto found = sweeps.find({range, schedule});
  if (found != sweeps.end()) return found->second;
  return sweeps[{range, schedule}] = sweep_chunks(range, schedule);
}

// Checks a spread in per cent, as docs/validation.md has it: golden, so that a change of a price is
// noticed. Half of the last digit is allowed.
void golden_spread(const Spread& spread, double mean, double ninetieth, double worst) {
  const auto check = [](double value, double expected) {
    CHECK(std::abs(100 * value - expected) <= 0.00501);
  };
  check(spread.mean, mean);
  check(spread.ninetieth, ninetieth);
  check(spread.worst, worst);
}

TEST_CASE(
    "the ranges: all of Table III, its whole experts, those with MP, seven lengths, Table 4") {
  CHECK(swept(kParm, kChunked).num_layers == 36 * 162);
  CHECK(swept(kParmWhole, kChunked).num_layers == 12 * 162);
  CHECK(swept(kParm, kMontaO2).num_layers == 24 * 162);
  CHECK(swept(kParm, kParmS2).num_layers == 24 * 162);
  CHECK(swept(kMonta, kChunked).num_layers == 7);
  CHECK(swept(kFsmoe, kChunked).num_layers == kFsmoeLayers);
  CHECK_THROWS_AS(sweep_chunks(kFsmoe, kParmS2), InternalError);
}

TEST_CASE("of whole experts Parm's S2 and MoNTA's O2 are the same tasks") {
  const ChunkSweep &s2 = swept(kParmWhole, kParmS2), &o2 = swept(kParmWhole, kMontaO2);
  CHECK(s2.num_apart == o2.num_apart);
  CHECK(s2.saved.mean == doctest::Approx(o2.saved.mean));
  CHECK(s2.saved.worst == doctest::Approx(o2.saved.worst));
}

TEST_CASE("golden: what a count of its own for each pass saves") {
  golden_spread(swept(kParm, kChunked).saved, 0.53, 2.15, 6.53);
  golden_spread(swept(kParm, kMontaO2).saved, 0.69, 2.67, 7.53);
  golden_spread(swept(kParm, kParmS2).saved, 0.44, 1.56, 6.54);
  golden_spread(swept(kMonta, kChunked).saved, 1.17, 1.87, 1.87);
  golden_spread(swept(kMonta, kMontaO2).saved, 0.03, 0.18, 0.18);
  golden_spread(swept(kMonta, kParmS2).saved, 0.80, 1.32, 1.32);
  golden_spread(swept(kFsmoe, kChunked).saved, 2.10, 5.86, 7.49);
}

TEST_CASE("golden: layers whose passes want different counts; of Table 4 FSMoE measured 912") {
  CHECK(swept(kParm, kChunked).num_apart == 2790);
  CHECK(swept(kFsmoe, kChunked).num_apart == 933);
}

TEST_CASE("golden: how much longer PipeMoE's count takes") {
  golden_spread(swept(kParmWhole, kChunked).regret, 3.67, 13.01, 18.89);
  golden_spread(swept(kParm, kChunked).regret, 2.99, 9.84, 25.29);
  golden_spread(swept(kMonta, kChunked).regret, 0.27, 0.89, 0.89);
  golden_spread(swept(kFsmoe, kChunked).regret, 3.91, 9.35, 13.52);
  golden_spread(swept(kParm, kChunked).regret_of_both, 2.04, 6.30, 25.29);
}

TEST_CASE("of whole experts the model's count is Piper's: of the forward, and of both passes") {
  const ChunkSweep& s = swept(kParmWhole, kChunked);
  golden_spread(s.forward_regret, 0.00, 0.00, 0.37);
  golden_spread(s.regret_of_both, 0.00, 0.00, 0.00);
  CHECK(s.num_near_of_both == s.num_layers);
}

}  // namespace
}  // namespace piper::studies
