#include <doctest/doctest.h>
#include <piper/cost/rank_parameters.h>
#include <piper/strategy/state_bytes.h>
#include <testing/cost/example_model.h>

namespace piper::cost {

TEST_CASE("a rank holds its stage's layers, a share of the experts and the ends where they are") {
  const model::Model model = example::mixture(4);
  const strategy::Strategy s = example::strategy(model, 2, 2, 4);
  // One layer: attention 8*(8+4+4) + 8*8 = 192, router 8*4 = 32, norms 2*8 = 16; experts 4*3*8*16 =
  // 1536. Embedding 32*8 = 256; final norm 8; head 256.
  const RankParameters first = rank_parameters(model, s, 0), last = rank_parameters(model, s, 1);
  CHECK(first.dense == 2 * 240 + 256);
  CHECK(first.experts == 2 * 1536 / 2);
  CHECK(last.dense == 2 * 240 + 8 + 256);
  CHECK(last.experts == first.experts);
}

TEST_CASE("with ZeRO every optimizer state is on one of the ranks that hold the parameter") {
  for (const bool tied : {false, true})
    for (const int64_t depth : {0, 1}) {
      CAPTURE(tied);
      CAPTURE(depth);
      const model::Model model = model::with_mtp(example::mixture(5, tied), depth);
      strategy::Strategy s = example::strategy(model, 2, 2, 6);
      for (int64_t stage = 0; stage < 2; ++stage) {
        const RankParameters shard = rank_parameters(model, s, stage);
        s.zero = 0;
        CHECK(optimized_parameters(model, s, stage, 5) == shard.total());
        s.zero = 1;
        int64_t sum = 0;
        for (int64_t member = 0; member < 6; ++member) {
          const int64_t own = optimized_parameters(model, s, stage, member);
          CHECK(own <= optimized_parameters(model, s, stage, 0));
          sum += own;
        }
        CHECK(sum == shard.dense + 2 * shard.experts);  // two sets of experts in three copies
      }
    }
}

TEST_CASE("with ZeRO 2 a rank holds the sums of its own gradients, and tables of both ends whole") {
  const model::Model plain = example::mixture(5);
  strategy::Strategy s = example::strategy(plain, 2, 2, 6);
  for (const int64_t member : {0, 5})
    for (const int64_t stage : {0, 1}) {
      s.zero = 1;
      CHECK(gradient_parameters(plain, s, stage, member) ==
            rank_parameters(plain, s, stage).total());
      s.zero = 2;
      CHECK(gradient_parameters(plain, s, stage, member) ==
            optimized_parameters(plain, s, stage, member));
    }
  const model::Model tied = example::mixture(5, true);
  const int64_t table = tied.vocabulary * tied.hidden;
  // The last stage's norm is in the buffer of its table.
  for (const auto& [stage, whole] : {std::pair{0, table}, {1, table + tied.hidden}})
    CHECK(gradient_parameters(tied, s, stage, 0) ==
          optimized_parameters(tied, s, stage, 0) - (whole + 5) / 6 + whole);
}

TEST_CASE("every parameter is on exactly pp x (dp or ep) ranks, tied tables on both ends") {
  for (const bool tied : {false, true})
    for (const int64_t pp : {1, 2, 3}) {
      CAPTURE(tied);
      CAPTURE(pp);
      const model::Model model = example::mixture(7, tied);
      const strategy::Strategy s = example::strategy(model, pp, 4, 4);
      int64_t held = 0;
      for (int64_t stage = 0; stage < pp; ++stage)
        held +=
            rank_parameters(model, s, stage).dense + 4 * rank_parameters(model, s, stage).experts;
      const int64_t twice = tied && pp > 1 ? model.vocabulary * model.hidden : 0;
      CHECK(held == model::count_parameters(model).total() + twice);
    }
}

TEST_CASE(
    "modules of multi-token prediction are the last stage's, with an embedding of their own") {
  for (const bool tied : {false, true})
    for (const int64_t pp : {1, 2}) {
      CAPTURE(tied);
      CAPTURE(pp);
      const model::Model plain = example::mixture(4, tied);
      const strategy::Strategy s = example::strategy(plain, pp, 2, 2);
      const RankParameters before = rank_parameters(plain, s, pp - 1);
      const RankParameters after = rank_parameters(model::with_mtp(plain, 2), s, pp - 1);
      // A layer of 240 dense parameters and 1536 in experts; the join's 2*8*8 + 3*8.
      CHECK(after.dense - before.dense == 2 * (240 + 152) + (pp == 2 && !tied ? 256 : 0));
      CHECK(after.experts - before.experts == 2 * 1536 / 2);
    }
}

TEST_CASE("state is 16 bytes a parameter, 32 in double precision") {
  CHECK(state_bytes(strategy::Precision::kFp32).total() == 16);
  CHECK(state_bytes(strategy::Precision::kBf16).total() == 18);
  CHECK(state_bytes(strategy::Precision::kFp64).total() == 32);
}

}  // namespace piper::cost
