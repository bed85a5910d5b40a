// Numbers with units for people: "12.3 GiB", "4.56 ms", "671.0 B". JSON keys carry the unit
// instead.
#pragma once

#include <cstdint>
#include <string>

namespace piper {

std::string format_bytes(double bytes);      // binary prefixes: "1.50 GiB"
std::string format_seconds(double seconds);  // "12.3 us", "4.56 ms", "7.89 s", "3 min 20 s"
std::string format_count(
    double count);  // decimal prefixes: "671.03 B" (billions), "12.3 M", "4.5 K", "17"
std::string format_flops_per_second(double flops);  // "989.0 TFLOP/s"
std::string format_bytes_per_second(double bytes);  // decimal prefixes: "25.0 GB/s"
std::string format_percent(double fraction);        // 0.3938 -> "39.4 %"

}  // namespace piper
