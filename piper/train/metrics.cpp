#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/train/metrics.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

namespace piper::train {
namespace {

constexpr int64_t kMaxStep = std::numeric_limits<int64_t>::max();
const std::string kSource = "it";

struct Line {
  std::string_view text;  // with its newline; without one: the file ends before it
  int64_t step = 0;
  std::string problem;  // "" = it is sound by itself
};

// The step of a whole line. Throws InvalidInput.
int64_t step_of(std::string_view line) {
  const Json json = parse_json(line, kSource);
  Problems problems(kSource);
  const int64_t step = ObjectReader(json, "", &problems).integer("step", 1, kMaxStep);
  problems.finish();
  return step;
}

Line read_line(std::string_view rest) {
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) return {.text = rest, .problem = "it was never finished"};
  Line line{.text = rest.substr(0, end + 1)};
  try {
    line.step = step_of(rest.substr(0, end));
  } catch (const InvalidInput& error) {
    line.problem = error.problems().front().substr(kSource.size() + 2);  // behind "it: "
  }
  return line;
}

// Why a line does not follow one of step `before`; `next` is the line behind it.
std::string disorder(const Line& line, int64_t before, const Line& next) {
  if (line.step <= before) return fmt::format("its step is {} after {}", line.step, before);
  const bool jumps = before > 0 && line.step != before + 1;
  if (jumps && next.problem.empty() && next.step <= line.step)
    return fmt::format("its step is {} between {} and {}", line.step, before, next.step);
  return "";
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

namespace {

// Of a run that rebalances: " | busiest rank 1.31 | moved 4 experts, 1.50 MiB in 2.1 ms".
std::string moved(const Json& extra) {
  const auto rank = extra.find("rank_imbalance");
  if (rank == extra.end()) return "";
  std::string text = fmt::format(" | busiest rank {:.2f}", rank->get<double>());
  if (extra.at("migrated_experts") > 0)
    text +=
        fmt::format(" | moved {} experts, {} in {}", extra.at("migrated_experts").get<int64_t>(),
                    format_bytes(extra.at("migrated_bytes").get<double>()),
                    format_seconds(extra.at("rebalance_seconds").get<double>()));
  return text;
}

}  // namespace

std::string console_line(const StepMetrics& m) {
  const auto mtp = m.extra.find("mtp_loss");
  return fmt::format(
      "step {} | loss {:.4f}{} | grad norm {:.2f} | {:.0f} tokens/s | MFU {} | peak {} | imbalance "
      "{:.2f}{}{}{}",
      m.step, m.loss,
      mtp == m.extra.end() ? "" : fmt::format(" | mtp loss {:.4f}", mtp->get<double>()),
      m.grad_norm, m.tokens_per_second, std::isnan(m.mfu) ? "-" : format_percent(m.mfu),
      format_bytes(static_cast<double>(m.peak_bytes)), m.load_imbalance,
      m.dropped_fraction ? " | dropped " + format_percent(*m.dropped_fraction) : "", moved(m.extra),
      m.skipped ? " | skipped: not finite" : "");
}

files::SoundPart sound_metrics(std::string_view bytes, int64_t last_step) {
  files::SoundPart part;
  int64_t before = 0, number = 1;
  for (Line line = read_line(bytes), next; !line.text.empty(); line = next, ++number) {
    next = read_line(bytes.substr(part.sound + line.text.size()));
    if (line.problem.empty()) line.problem = disorder(line, before, next);
    if (!line.problem.empty()) {
      part.damage = fmt::format("line {} is damaged: {}", number, line.problem);
      return part;
    }
    part.sound += line.text.size();
    before = line.step;
    if (line.step > last_step) continue;
    part.kept = part.sound;
    part.last_step = line.step;
  }
  return part;
}

MetricsWriter::MetricsWriter(std::filesystem::path path, int64_t last_step)
    : path_(std::move(path)) {
  files::SoundPart part;
  if (std::filesystem::exists(path_)) {
    const std::string text = read_text_file(path_);
    part = sound_metrics(text, last_step);
    if (std::string note = files::cut_tail(path_, text, part, path_.string() + ".damaged");
        !note.empty())
      notes_.push_back(std::move(note));
  }
  if (part.last_step < last_step)
    notes_.push_back(fmt::format("{}: steps {} to {} are not in it", path_.string(),
                                 part.last_step + 1, last_step));
  file_.reset(std::fopen(path_.c_str(), "abe"));
  if (!file_) throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
}

void MetricsWriter::sync() const {
  if (::fsync(::fileno(file_.get())) != 0)
    throw IoError(path_.string() + ": cannot be flushed: " + std::strerror(errno));
}

void MetricsWriter::write(const StepMetrics& metrics) {
  const std::string line = to_json(metrics).dump() + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0)
    throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
}

}  // namespace piper::train
