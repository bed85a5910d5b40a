#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/train/metrics.h>
#include <unistd.h>

#include <cerrno>
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
int64_t step_of_line(std::string_view line) {
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
    line.step = step_of_line(rest.substr(0, end));
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

void MetricsWriter::write(const report::StepMetrics& metrics) {
  const std::string line = report::to_json(metrics).dump() + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0)
    throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
}

}  // namespace piper::train
