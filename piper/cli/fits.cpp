#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/fits.h>
#include <piper/plan/question.h>

namespace piper::cli {

Fit memory_fit(const cluster::Cluster& cluster, double peak_bytes, int64_t stage) {
  const auto memory = static_cast<double>(cluster.memory_bytes);
  return {.peak_bytes = peak_bytes,
          .usable_bytes = plan::kUsableMemory * memory,
          .memory_bytes = memory,
          .stage = stage};
}

std::string to_text(const Fit& fit) {
  if (fit.fits()) return "";
  return fmt::format(
      "does not fit: {} of {} usable on stage {}; a device has {}, of which plans use {}\n",
      format_bytes(fit.peak_bytes), format_bytes(fit.usable_bytes), fit.stage,
      format_bytes(fit.memory_bytes), format_percent(plan::kUsableMemory));
}

void add_to(Json& json, const Fit& fit) {
  json["fits"] = fit.fits();
  json["usable_bytes"] = fit.usable_bytes;
}

}  // namespace piper::cli
