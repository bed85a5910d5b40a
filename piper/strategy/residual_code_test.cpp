#include <doctest/doctest.h>
#include <piper/strategy/residual_code.h>

using namespace piper::strategy;

namespace {

Strategy of_ranks(int64_t edp, int64_t compression) {
  Strategy s;
  s.mesh = {.ep = 1, .dp = edp};
  s.expert_compression = compression;
  return s;
}

}  // namespace

TEST_CASE("a message is as short as was asked, places included, and keeps one element of a block") {
  // 256 elements of two bytes: 512 bytes in blocks of 3 a kept element.
  const ResidualCode fifty = residual_code(of_ranks(4, 50), 4 * 2560, 2);
  CHECK(fifty.block == 256);
  CHECK(fifty.kept == 3);
  CHECK(fifty.bytes_of(2560) == 96);  // 10 x 9, padded
  for (const int64_t compression : {2, 3, 7, 16, 100, 150})
    for (const int64_t value_bytes : {2, 4, 8}) {
      const ResidualCode code = residual_code(of_ranks(2, compression), 2 << 20, value_bytes);
      const int64_t whole = (1 << 20) * value_bytes;
      CHECK(code.kept >= 1);
      CHECK(code.kept <= code.block);
      CHECK(code.bytes_of(1 << 20) * compression <= whole);
      // One more a block would be too many.
      CHECK((code.kept + 1) * (value_bytes + 1) * compression > code.block * value_bytes);
    }
  CHECK(residual_code(of_ranks(2, kMostExpertCompression), 2 << 20, 2).kept == 1);
}

TEST_CASE("blocks are as large as every share allows") {
  CHECK(residual_code(of_ranks(4, 10), 4 * 3 * 64, 2).block == 64);
  CHECK(residual_code(of_ranks(4, 10), 4 * 48, 2).block == 16);
  CHECK(residual_code(of_ranks(4, 10), 4 * 24, 2).block == 0);
  CHECK(residual_code(of_ranks(3, 10), 4 * 256, 2).block == 0);
}
