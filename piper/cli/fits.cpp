#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/fits.h>

namespace piper::cli {

Fit memory_fit(const cluster::Cluster& cluster, double peak_bytes, int64_t stage) {
  return {.peak_bytes = peak_bytes,
          .memory_bytes = static_cast<double>(cluster.memory_bytes),
          .stage = stage};
}

std::string to_text(const Fit& fit) {
  if (fit.fits()) return "";
  return fmt::format("does not fit: {} of the {} of a device on stage {}\n",
                     format_bytes(fit.peak_bytes), format_bytes(fit.memory_bytes), fit.stage);
}

void add_to(Json& json, const Fit& fit) {
  json["fits"] = fit.fits();
  json["device_memory_bytes"] = fit.memory_bytes;
}

}  // namespace piper::cli
