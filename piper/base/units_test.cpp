#include <doctest/doctest.h>
#include <piper/base/units.h>

using namespace piper;

TEST_CASE("numbers carry the unit a person would choose") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1536) == "1.50 KiB");
  CHECK(format_bytes(80.0 * (1 << 30)) == "80.00 GiB");
  CHECK(format_count(671.03e9) == "671.0 B");
  CHECK(format_count(999.999e6) == "1.00 B");
  CHECK(format_seconds(0.0000123) == "12.3 us");
  CHECK(format_seconds(0.00456) == "4.56 ms");
  CHECK(format_seconds(200) == "3 min 20 s");
  CHECK(format_seconds(3599.9) == "60 min 0 s");
  CHECK(format_seconds(0.99996) == "1.00 s");
  CHECK(format_seconds(-200) == "-3 min 20 s");
  CHECK(format_flops_per_second(989e12) == "989.0 TFLOP/s");
  CHECK(format_bytes_per_second(25e9) == "25.00 GB/s");
  CHECK(format_percent(0.39375) == "39.4 %");
}
