#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/nn/instruction_set.h>
#include <piper/nn/product.h>

#include <cstdlib>

namespace piper::nn {

TEST_CASE("PIPER_MAX_ISA takes away and never adds") {
  using enum InstructionSet;
  CHECK(limited(kAvx512, nullptr) == kAvx512);
  CHECK(limited(kAvx512, "avx512") == kAvx512);
  CHECK(limited(kAvx512, "avx2") == kAvx2);
  CHECK(limited(kAvx512, "baseline") == kBaseline);
  CHECK(limited(kAvx2, "avx512") == kAvx2);
  CHECK(limited(kBaseline, "avx2") == kBaseline);
  CHECK_THROWS_WITH_AS(limited(kAvx512, "sse9"),
                       "PIPER_MAX_ISA is 'sse9'; allowed: baseline, avx2, avx512", InvalidInput);
  CHECK(instruction_set() <= limited(kAvx512, std::getenv("PIPER_MAX_ISA")));
}

TEST_CASE("PIPER_PRODUCTS leaves oneDNN out") {
  CHECK_FALSE(uses_onednn("libtorch", true));
  CHECK_FALSE(uses_onednn("libtorch", false));
  CHECK_FALSE(uses_onednn(nullptr, false));
  CHECK_THROWS_WITH_AS(uses_onednn("mkl", true),
                       "PIPER_PRODUCTS is 'mkl'; allowed: libtorch, onednn", InvalidInput);
  const char* wanted = std::getenv("PIPER_PRODUCTS");
  if (wanted != nullptr && std::string(wanted) == "libtorch") CHECK_FALSE(uses_onednn());
}

}  // namespace piper::nn
