#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/files/output.h>
#include <piper/train/metrics.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

namespace piper::train {
namespace {

constexpr int64_t kMaxStep = std::numeric_limits<int64_t>::max();
const std::string kSource = "it";
constexpr size_t kUsualLine = size_t{64} << 10, kLongestLine = size_t{4} << 20;

struct Line {
  size_t size = 0;  // with its newline; without one: the file ends before it
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

Line read_line(files::Bytes& bytes, size_t offset) {
  std::string_view rest = bytes.at(offset, kUsualLine);
  if (rest.find('\n') == std::string_view::npos) rest = bytes.at(offset, kLongestLine);
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos && rest.size() == kLongestLine)
    return {.size = rest.size(), .problem = "it is longer than a step's record"};
  if (end == std::string_view::npos)
    return {.size = rest.size(), .problem = "it was never finished"};
  Line line{.size = end + 1};
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

files::SoundPart sound_metrics(files::Bytes bytes, int64_t last_step) {
  files::SoundPart part;
  int64_t before = 0, number = 1;
  for (Line line = read_line(bytes, 0), next; line.size > 0; line = next, ++number) {
    next = read_line(bytes, part.sound + line.size);
    if (line.problem.empty()) line.problem = disorder(line, before, next);
    if (!line.problem.empty()) {
      part.damage = fmt::format("line {} is damaged: {}", number, line.problem);
      return part;
    }
    part.sound += line.size;
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
  open();
  if (std::filesystem::file_size(path_) > 0) {
    const FileReader file(path_, Reads::kRecord);
    part = sound_metrics(files::Bytes(file), last_step);
    if (std::string note =
            files::cut_tail(path_, files::Bytes(file), part, path_.string() + ".damaged");
        !note.empty())
      notes_.push_back(std::move(note));
  }
  is_empty_ = part.kept == 0;
  if (part.last_step < last_step)
    notes_.push_back(fmt::format("{}: steps {} to {} are not in it", path_.string(),
                                 part.last_step + 1, last_step));
}

void MetricsWriter::open() {
  file_.reset(
      ::fdopen(files::open_output(path_, files::Start::kEnd, files::Existing::kRecord), "a"));
  if (!file_) throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
}

// A run may take weeks, and its folder is anybody's.
void MetricsWriter::open_again_where_it_is_gone(int64_t step) {
  if (files::is_still(path_, ::fileno(file_.get()))) return;
  const std::lock_guard lock(mutex_);
  file_.reset(::fdopen(files::open_output(path_, files::Start::kEnd, files::Existing::kOurs), "a"));
  if (!file_) throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
  is_empty_ = std::filesystem::file_size(path_) == 0;
  notes_.push_back(
      fmt::format("{}: was removed or replaced while training: what was in it before step {} is "
                  "not in it any more",
                  path_.string(), step));
}

std::vector<std::string> MetricsWriter::take_notes() { return std::exchange(notes_, {}); }

void MetricsWriter::sync() const {
  const std::lock_guard lock(mutex_);
  if (::fsync(::fileno(file_.get())) != 0)
    throw IoError(path_.string() + ": cannot be flushed: " + std::strerror(errno));
}

void MetricsWriter::write(const report::StepMetrics& metrics) {
  open_again_where_it_is_gone(metrics.step);
  Json json = report::to_json(metrics);
  if (is_empty_) json[kWrittenBy] = "piper";
  is_empty_ = false;
  const std::string line = json.dump() + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0)
    throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
}

}  // namespace piper::train
