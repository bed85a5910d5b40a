#include <fmt/format.h>
#include <piper/base/units.h>

#include <array>
#include <cmath>

namespace piper {
namespace {

template <size_t N>
std::string scaled(double value, double step, const std::array<const char*, N>& units) {
  size_t i = 0;
  while (i + 1 < N && std::abs(value) >= step * 0.99995) {
    value /= step;
    ++i;
  }
  const int digits = i == 0 && value == std::floor(value) ? 0 : std::abs(value) >= 100 ? 1 : 2;
  return fmt::format("{:.{}f}{}{}", value, digits, units[i][0] ? " " : "", units[i]);
}

}  // namespace

std::string format_bytes(double bytes) {
  return scaled<6>(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"});
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "never";
  if (seconds < 0) return fmt::format("-{}", format_seconds(-seconds));
  if (seconds == 0) return "0 s";
  // The thresholds lie where rounding would carry into the next unit.
  if (seconds < 0.99995e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 0.99995) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds < 0.1 ? 2 : 1);
  if (seconds < 119.995) return fmt::format("{:.2f} s", seconds);
  if (seconds < 7199.5) {
    const auto whole = static_cast<int64_t>(std::llround(seconds));
    return fmt::format("{} min {} s", whole / 60, whole % 60);
  }
  constexpr double kCountedHours = 1e9;
  const double hours = seconds / 3600;
  return hours < kCountedHours ? fmt::format("{:.1f} h", hours) : fmt::format("{:.3g} h", hours);
}

std::string format_count(double count) { return scaled<5>(count, 1000, {"", "K", "M", "B", "T"}); }

std::string format_flops_per_second(double flops) {
  return scaled<6>(flops, 1000, {"FLOP/s", "KFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"});
}

std::string format_bytes_per_second(double bytes) {
  return scaled<5>(bytes, 1000, {"B/s", "KB/s", "MB/s", "GB/s", "TB/s"});
}

std::string format_percent(double fraction) { return fmt::format("{:.1f} %", fraction * 100); }

}  // namespace piper
