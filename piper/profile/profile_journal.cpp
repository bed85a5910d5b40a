#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/files/output.h>
#include <piper/profile/profile_journal.h>

#include <cerrno>
#include <cstring>
#include <sstream>

namespace piper::profile {
namespace {

constexpr const char* kMark = "piper_profile";
constexpr int kVersion = 1;

// The first key of `expected` that `found` holds otherwise.
std::string difference(const Json& found, const Json& expected) {
  for (const auto& [key, value] : expected.items()) {
    const Json other = found.is_object() && found.contains(key) ? found[key] : Json();
    if (other != value)
      return fmt::format("'{}' was {} then and is {} now", key, quote(other), quote(value));
  }
  return "";
}

Json to_json(const std::string& curve, const std::vector<double>& at, const cluster::Timing& t) {
  return {{"curve", curve},
          {"at", at},
          {"seconds", t.seconds},
          {"seconds_low", t.low_seconds},
          {"seconds_high", t.high_seconds},
          {"seconds_worst", t.worst_seconds},
          {"num_samples", t.num_samples},
          {"num_outliers", t.num_outliers}};
}

std::pair<MeasuredPoints::key_type, cluster::Timing> read_point(const Json& line,
                                                                const std::string& name) {
  Problems problems(name);
  ObjectReader reader(line, "", &problems);
  const std::string curve = reader.text("curve");
  const std::vector<double> at = reader.numbers("at", 0, 1e15);
  constexpr double kShortest = 1e-12, kLongest = 1e6;
  cluster::Timing t;
  t.seconds = reader.number("seconds", kShortest, kLongest);
  t.low_seconds = reader.number("seconds_low", kShortest, kLongest);
  t.high_seconds = reader.number("seconds_high", kShortest, kLongest);
  t.worst_seconds = reader.number("seconds_worst", kShortest, kLongest);
  t.num_samples = reader.integer("num_samples", 1, int64_t{1} << 40);
  t.num_outliers = reader.integer("num_outliers", 0, int64_t{1} << 40);
  reader.refuse_unknown();
  problems.finish();
  return {{curve, at}, t};
}

}  // namespace

MeasuredPoints read_points(const std::string& text, const Json& measured_with,
                           const std::string& name) {
  std::istringstream lines(text);
  std::string line;
  const auto foreign = [&](const std::string& why) {
    return InvalidInput(
        fmt::format("{}: {}; delete it, or give --fresh, to measure anew", name, why));
  };
  MeasuredPoints points;
  if (!std::getline(lines, line)) return points;  // cut off before the first line ended
  Json head;
  try {
    head = parse_json(line, name);
  } catch (const InvalidInput&) {
  }
  if (!head.is_object() || !head.contains(kMark) || head[kMark] != kVersion ||
      !head.contains("measured_with"))
    throw foreign("is no partial file of piper profile");
  if (const std::string why = difference(head["measured_with"], measured_with); !why.empty())
    throw foreign("was measured with other options or on another machine: " + why);
  while (std::getline(lines, line)) {
    try {
      const auto [key, timing] = read_point(parse_json(line, name), name);
      points[key] = timing;
    } catch (const InvalidInput&) {
      break;
    }
  }
  return points;
}

std::string to_text(const MeasuredPoints& points, const Json& measured_with) {
  std::string text = Json{{kMark, kVersion}, {"measured_with", measured_with}}.dump() + "\n";
  for (const auto& [key, timing] : points)
    text += to_json(key.first, key.second, timing).dump() + "\n";
  return text;
}

ProfileJournal::ProfileJournal(std::filesystem::path path, Json measured_with, bool fresh)
    : path_(std::move(path)), measured_with_(std::move(measured_with)) {
  if (!fresh && std::filesystem::exists(path_))
    points_ = read_points(read_text_file(path_), measured_with_, path_.string());
  num_restored_ = std::ssize(points_);
}

std::optional<cluster::Timing> ProfileJournal::find(const std::string& curve,
                                                    const std::vector<double>& at) const {
  const auto found = points_.find({curve, at});
  if (found == points_.end()) return std::nullopt;
  return found->second;
}

void ProfileJournal::add(const std::string& curve, const std::vector<double>& at,
                         const cluster::Timing& timing) {
  if (path_.empty()) return;
  if (!out_) {
    // As a file of its own: what was cut off is gone.
    files::write_text_file(path_, to_text(points_, measured_with_), files::Existing::kRecord);
    out_.reset(
        ::fdopen(files::open_output(path_, files::Start::kEnd, files::Existing::kRecord), "a"));
  }
  points_[{curve, at}] = timing;
  const std::string line = to_json(curve, at, timing).dump() + "\n";
  if (!out_ || std::fwrite(line.data(), 1, line.size(), out_.get()) != line.size() ||
      std::fflush(out_.get()) != 0)
    throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
}

}  // namespace piper::profile
