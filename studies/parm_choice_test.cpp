#include <doctest/doctest.h>
#include <studies/parm_choice.h>
#include <testing/cost/relative_approx.h>

#include <cmath>

namespace piper::studies {
namespace {

using cost::near;

using paper::parm::Schedule;

const model::FeedForward kLayer{.ffn = 4096, .num_experts = 32, .top_k = 2};

cost::MoeSetting setting(double tokens, int64_t tp, int64_t ep, int64_t etp) {
  return {.hidden = 4096,
          .tokens = tokens,
          .tp = tp,
          .ep = ep,
          .etp = etp,
          .precision = strategy::Precision::kFp32};
}

double largest_error(const ParmChoice& choice) {
  double worst = 0;
  for (const FittedCollective& c : choice.collectives) worst = std::max(worst, c.worst_error);
  return worst;
}

TEST_CASE("where collectives are lines, so are the fits: exact but for the overlap of two") {
  const ParmChoice b =
      choose_as_parm(kLayer, setting(4096, 4, 8, 4), cluster::load_cluster("rtx2080ti"));
  for (const FittedCollective& c : b.collectives) {
    CAPTURE(c.name);
    CHECK(c.ranks > 1);
    CHECK(c.fit.startup_seconds > 0);
    CHECK(c.fit.seconds_per_element > 0);
    if (std::string(c.name) != "Overlap") CHECK(c.worst_error < 1e-6);
  }
  CHECK(largest_error(b) < 0.05);
}

TEST_CASE("groups of one rank cost nothing; without MP both schedules are the fused exchange") {
  const ParmChoice choice =
      choose_as_parm(kLayer, setting(4096, 1, 8, 4), cluster::load_cluster("dgx-h100"));
  CHECK(choice.collectives.back().ranks == 1);  // MP-AllGather
  CHECK(choice.corrected == choice.printed);    // nothing to choose
  CHECK(choice.s1_seconds == near(choice.s2_seconds));
  CHECK(choice.s1_seconds ==
        near(paper::parm::fused_seconds(choice.layer, choice.degrees, choice.fits)));
  CHECK(choice.baseline_seconds > choice.s1_seconds);
}

TEST_CASE("few tokens choose S2, many S1, where the gather is no faster than the exchange") {
  // T -> 0 leaves start-ups alone, of which S1 has the gather's besides; k rows of a token are
  // more to gather than the token.
  const cluster::Cluster machine = cluster::load_cluster("rtx4090x8");
  CHECK(choose_as_parm(kLayer, setting(8, 4, 2, 1), machine).corrected == Schedule::kS2);
  CHECK(choose_as_parm({.ffn = 4096, .num_experts = 32, .top_k = 8}, setting(65'536, 4, 2, 1),
                       machine)
            .corrected == Schedule::kS1);
}

TEST_CASE("what the lines say is what the schedules' prices say of the forward's communication") {
  for (const char* name : {"rtx2080ti", "dgx-h100", "a800"})
    for (const int64_t tp : {2, 4})
      for (const int64_t etp : {1, 2, 4}) {
        const cluster::Cluster machine = cluster::load_cluster(name);
        const cost::MoeSetting of = setting(8192, tp, 4, etp);
        const ParmChoice choice = choose_as_parm(kLayer, of, machine);
        CAPTURE(name);
        CAPTURE(tp);
        CAPTURE(etp);
        for (const cost::MoeSchedulePrice& p : cost::price_moe_schedules(kLayer, of, machine)) {
          const double communication = p.forward.total - p.forward.experts;
          if (p.name == "parm-baseline")
            CHECK(choice.baseline_seconds == near(communication).epsilon(1e-6));
          if (p.name == "parm-s1") CHECK(choice.s1_seconds == near(communication).epsilon(1e-6));
          if (p.name != "parm-s2") continue;
          // Overlap() lets both have their links for themselves; a price knows which they share.
          CHECK(choice.s2_seconds <= communication * (1 + 1e-6));
          CHECK(communication <=
                paper::parm::s2_sequential_seconds(choice.layer, choice.degrees, choice.fits) *
                    (1 + 1e-6));
        }
      }
}

}  // namespace
}  // namespace piper::studies
