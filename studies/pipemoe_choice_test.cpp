// PipeMoE's count by a machine's lines, and what it costs by price.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <studies/pipemoe_choice.h>
#include <testing/cost/relative_approx.h>

namespace piper::studies {
namespace {

using cost::near;

const model::FeedForward kPipeMoeLayer{.ffn = 4096, .num_experts = 8, .top_k = 2};

std::vector<cost::MoeSchedulePrice> prices(const char* cluster, double tokens, int64_t ep,
                                           int64_t etp = 1) {
  return cost::price_chunks(kPipeMoeLayer,
                            {.hidden = 4096,
                             .tokens = tokens,
                             .ep = ep,
                             .etp = etp,
                             .precision = strategy::Precision::kFp32},
                            cluster::load_cluster(cluster), strategy::MoeSchedule::kChunked);
}

TEST_CASE("where prices are lines the model's seconds are the forward's price, in every count") {
  // rtx2080ti has one rate for all products of so many rows. 1e-6: what the fit's iterations leave.
  for (const double tokens : {2048.0, 8192.0, 65'536.0}) {
    const std::vector<cost::MoeSchedulePrice> list = prices("rtx2080ti", tokens, 8);
    const PipemoeChoice choice = choose_as_pipemoe(list);
    CAPTURE(tokens);
    CHECK(choice.all_to_all_error < 1e-6);
    CHECK(choice.experts_error < 1e-6);
    for (const cost::MoeSchedulePrice& p : list)
      CHECK(paper::pipemoe::seconds(choice.forward, p.num_chunks) == near(p.forward.total, 1e-6));
    for (const cost::MoeSchedulePrice& p : list)
      CHECK(choice.price.forward.total <= p.forward.total * (1 + 1e-6));
    for (const cost::MoeSchedulePrice& p : list)
      CHECK(paper::pipemoe::seconds(choice.backward, p.num_chunks) == near(p.backward.total, 1e-6));
    CHECK(choice.regret_of_both() < 1e-6);
    CHECK(choice.chunks.seconds == near(choice.price.forward.total, 1e-6));
  }
}

TEST_CASE("products of few rows read as many weights: the experts are no line") {
  const PipemoeChoice choice = choose_as_pipemoe(prices("rtx2080ti", 512, 8));
  CHECK(choice.all_to_all_error < 1e-6);
  CHECK(choice.experts_error > 0.1);
}

TEST_CASE("its price is that of its count, never below Piper's best of both passes") {
  for (const char* cluster : {"rtx2080ti", "dgx-h100", "frontier"})
    for (const int64_t etp : {1, 4})
      for (const double tokens : {8.0, 1024.0, 65'536.0}) {
        const std::vector<cost::MoeSchedulePrice> list = prices(cluster, tokens, 8, etp);
        const PipemoeChoice choice = choose_as_pipemoe(list);
        CHECK(choice.price.num_chunks == choice.chunks.num_chunks);
        CHECK(choice.best.num_chunks == list[cost::cheapest(list)].num_chunks);
        CHECK(choice.regret() >= 0);
        CHECK(choice.regret_of_both() >= 0);
        CHECK(choice.price_of_both.num_chunks == choice.chunks_of_both);
      }
}

TEST_CASE("a group of one rank, or one token, is one chunk") {
  CHECK(choose_as_pipemoe(prices("rtx2080ti", 4096, 1)).chunks.num_chunks == 1);
  CHECK(choose_as_pipemoe(prices("rtx2080ti", 1, 8)).chunks.num_chunks == 1);
  CHECK_THROWS_AS(choose_as_pipemoe({}), InternalError);
}

}  // namespace
}  // namespace piper::studies
