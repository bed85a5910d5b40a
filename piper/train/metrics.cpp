#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/train/metrics.h>

#include <cerrno>
#include <cmath>
#include <cstring>

namespace piper::train {
namespace {

// The lines of `text` whose step is at most `last_step`. Text after the last newline is a line whose writer was
// killed.
std::string lines_until(const std::string& text, int64_t last_step, const std::string& source) {
  std::string kept;
  size_t begin = 0;
  for (int64_t number = 1;; ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) return kept;
    const std::string line = text.substr(begin, end - begin);
    const std::string where = fmt::format("{}:{}", source, number);
    const Json json = parse_json(line, where);
    Problems problems(where);
    const int64_t step =
        ObjectReader(json, "", &problems).integer("step", 1, std::numeric_limits<int64_t>::max());
    problems.finish();
    if (step <= last_step) kept += line + "\n";
    begin = end + 1;
  }
}

}  // namespace

Json to_json(const StepMetrics& m) {
  Json json = {{"step", m.step},
               {"loss", m.loss},
               {"auxiliary_loss", m.auxiliary_loss},
               {"z_loss", m.z_loss},
               {"grad_norm", m.grad_norm},
               {"learning_rate", m.learning_rate},
               {"step_seconds", m.step_seconds},
               {"tokens_per_second", m.tokens_per_second},
               {"mfu", m.mfu},
               {"peak_bytes", m.peak_bytes},
               {"load_imbalance", m.load_imbalance},
               {"dropped_fraction", m.dropped_fraction.value_or(0)},
               {"skipped", m.skipped}};
  for (const auto& [key, value] : m.extra.items()) json[key] = value;
  return json;
}

std::string console_line(const StepMetrics& m) {
  const auto mtp = m.extra.find("mtp_loss");
  return fmt::format(
      "step {} | loss {:.4f}{} | grad norm {:.2f} | {:.0f} tokens/s | MFU {} | peak {} | imbalance "
      "{:.2f}{}{}",
      m.step, m.loss,
      mtp == m.extra.end() ? "" : fmt::format(" | mtp loss {:.4f}", mtp->get<double>()),
      m.grad_norm, m.tokens_per_second, std::isnan(m.mfu) ? "-" : format_percent(m.mfu),
      format_bytes(static_cast<double>(m.peak_bytes)), m.load_imbalance,
      m.dropped_fraction ? " | dropped " + format_percent(*m.dropped_fraction) : "",
      m.skipped ? " | skipped: not finite" : "");
}

MetricsWriter::MetricsWriter(std::filesystem::path path, int64_t last_step)
    : path_(std::move(path)) {
  if (std::filesystem::exists(path_))
    write_text_file(path_, lines_until(read_text_file(path_), last_step, path_.string()));
  file_.reset(std::fopen(path_.c_str(), "abe"));
  if (!file_) throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
}

void MetricsWriter::write(const StepMetrics& metrics) {
  const std::string line = to_json(metrics).dump() + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0)
    throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
}

}  // namespace piper::train
