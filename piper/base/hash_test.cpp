#include <doctest/doctest.h>
#include <piper/base/hash.h>

namespace piper {

TEST_CASE("SplitMix64 draws the numbers that its authors' program draws from seed 0") {
  CHECK(splitmix64(0) == 0xe220a8397b1dcdaf);
  CHECK(splitmix64(kSplitMixStep) == 0x6e789e6aa1b965f4);
  CHECK(splitmix64(2 * kSplitMixStep) == 0x06c45d188009454f);
}

TEST_CASE("texts hash as FNV-1a") {
  CHECK(fnv1a64("") == 0xcbf29ce484222325);
  CHECK(fnv1a64("a") == 0xaf63dc4c8601ec8c);
  CHECK(fnv1a64("foobar") == 0x85944171f73967e8);
}

}  // namespace piper
