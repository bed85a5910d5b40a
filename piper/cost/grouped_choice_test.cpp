#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cost/grouped_choice.h>

namespace piper::cost {
namespace {

const GroupedChoice kChoice({{{.rows = 4, .hidden = 256, .ffn = 512, .experts = 8}, true},
                             {{.rows = 1024, .hidden = 256, .ffn = 512, .experts = 8}, false},
                             {{.rows = 1024, .hidden = 256, .ffn = 512, .experts = 64}, true}});

}  // namespace

TEST_CASE("without a measurement all experts are one product") {
  CHECK(GroupedChoice().of({.rows = 1, .hidden = 1, .ffn = 1, .experts = 1}));
  CHECK_FALSE(GroupedChoice().is_measured());
}

TEST_CASE("the nearest measured point by ratios decides") {
  CHECK(kChoice.of({.rows = 60, .hidden = 256, .ffn = 512, .experts = 8}));  // 15 x and 17 x away
  CHECK_FALSE(kChoice.of({.rows = 70, .hidden = 256, .ffn = 512, .experts = 8}));
  CHECK_FALSE(kChoice.of({.rows = 1024, .hidden = 512, .ffn = 256, .experts = 16}));
  CHECK(kChoice.of({.rows = 1024, .hidden = 512, .ffn = 256, .experts = 32}));
}

TEST_CASE("a choice of experts' products is its text; nonsense is refused") {
  CHECK(kChoice.text() == "4 256 512 8 g, 1024 256 512 8 o, 1024 256 512 64 g");
  CHECK(GroupedChoice::parse(kChoice.text()).text() == kChoice.text());
  CHECK(kChoice.num_grouped() == 2);
  for (const char* text : {"", "4 256 512 8", "4 256 512 8 x", "4 256 512 8 g o", "0 1 1 1 g",
                           "nan 1 1 1 g", "4 256 512 8 g, ,"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(GroupedChoice::parse(text), InvalidInput);
  }
}

TEST_CASE("experts are one product at the sizes where that takes less time over all skews") {
  const auto curve = [](const char* name, double even, double skewed) {
    return cluster::Curve{.name = name,
                          .unit = "flops",
                          .axes = {"rows", "hidden", "ffn", "experts", "skew"},
                          .points = {{{4, 256, 512, 8, 0}, 1, {.seconds = even}},
                                     {{4, 256, 512, 8, 1}, 1, {.seconds = skewed}},
                                     {{64, 256, 512, 8, 0}, 1, {.seconds = 2}}},
                          .fit = {}};
  };
  cluster::Cluster cluster{.kind = "gpu"};
  cluster.curves = {curve("expert_gemm.bf16", 3, 3), curve("expert_gemm_grouped.bf16", 1, 6)};
  CHECK(grouped_choice_of(cluster).text() == "4 256 512 8 o, 64 256 512 8 g");
  cluster.curves = {curve("expert_gemm.bf16", 3, 3), curve("expert_gemm_grouped.bf16", 1, 4)};
  CHECK(grouped_choice_of(cluster).text() == "4 256 512 8 g, 64 256 512 8 g");
  cluster.kind = "cpu";
  CHECK_FALSE(grouped_choice_of(cluster).is_measured());
  cluster.kind = "gpu";
  cluster.curves.pop_back();
  CHECK_FALSE(grouped_choice_of(cluster).is_measured());
}

}  // namespace piper::cost
