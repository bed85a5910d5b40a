#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/nn/grouped_choice.h>

namespace piper::nn {
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

}  // namespace piper::nn
