#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cluster/read_curves.h>

#include <algorithm>
#include <set>

namespace piper::cluster {
namespace {

constexpr double kMaxCoordinate = 1e15;
constexpr double kMaxAmount = 1e24;
constexpr double kMaxPointSeconds = 1e6;
constexpr double kMaxCount = 1e12;
constexpr size_t kMaxPoints = 256;  // of one axis of a grid
constexpr size_t kMaxCurves = 256, kMaxCurveAxes = 8, kMaxCurvePoints = 100'000;

const std::set<std::string> kColumns = {"amount",       "seconds",       "seconds_low",
                                        "seconds_high", "seconds_worst", "num_samples",
                                        "num_outliers"};

// One line for all holes of a column: a curve with holes is no measurement to interpolate in.
bool has_holes(ObjectReader& reader, const std::string& key) {
  const Json* values = reader.array(key);
  if (values == nullptr) return false;
  const auto holes = std::ranges::count_if(*values, [](const Json& v) { return v.is_null(); });
  if (holes > 0) {
    const auto first = std::ranges::find_if(*values, [](const Json& v) { return v.is_null(); });
    reader.problem(key,
                   fmt::format("has {} hole{} (null), the first at entry {}; allowed: a number "
                               "for every point",
                               holes, holes == 1 ? "" : "s", first - values->begin()));
  }
  return holes > 0;
}

std::vector<double> parse_axis(ObjectReader& reader, const std::string& axis) {
  if (!reader.has(axis)) reader.problem(axis, "is missing");
  if (has_holes(reader, axis)) return {};
  std::vector<double> points = reader.numbers(axis, 1, kMaxCoordinate);
  if (points.empty() || points.size() > kMaxPoints)
    reader.problem(axis, fmt::format("has {} points; allowed: 1 to {}", points.size(), kMaxPoints));
  for (size_t i = 1; i < points.size(); ++i)
    if (!(points[i] > points[i - 1])) {
      reader.problem(axis, fmt::format("does not ascend: {} follows {}", points[i], points[i - 1]));
      break;
    }
  return points;
}

std::vector<std::string> parse_axes(ObjectReader& reader) {
  std::vector<std::string> axes;
  const Json* json = reader.array("axes");
  if (json == nullptr || json->empty() || json->size() > kMaxCurveAxes) {
    reader.problem("axes", fmt::format("has {} names; allowed: 1 to {}",
                                       json == nullptr ? 0 : json->size(), kMaxCurveAxes));
    return axes;
  }
  for (const Json& name : *json) {
    const std::string text = name.is_string() ? name.get<std::string>() : "";
    if (text.empty() || kColumns.contains(text) || std::ranges::count(axes, text) > 0) {
      reader.problem("axes",
                     fmt::format("holds {}; allowed: names of axes, each once, none of them "
                                 "a column of the timing",
                                 quote(name)));
      return {};
    }
    axes.push_back(text);
  }
  return axes;
}

// The columns of a curve's points, all as long as the first.
class Columns {
 public:
  explicit Columns(ObjectReader& reader) : reader_(reader) {}
  std::vector<double> get(const std::string& key, double min, double max) {
    if (!reader_.has(key)) reader_.problem(key, "is missing");
    if (!reader_.has(key) || has_holes(reader_, key)) {
      sound_ = false;
      return {};
    }
    std::vector<double> column = reader_.numbers(key, min, max);
    if (first_.empty()) {
      first_ = key;
      size_ = column.size();
    } else if (column.size() != size_) {
      reader_.problem(key, fmt::format("has {} entries; allowed: {}, as '{}' has", column.size(),
                                       size_, first_));
      sound_ = false;
    }
    return column;
  }
  bool sound() const { return sound_; }
  size_t size() const { return size_; }

 private:
  ObjectReader& reader_;
  std::string first_;
  size_t size_ = 0;
  bool sound_ = true;
};

std::vector<CurvePoint> parse_points(ObjectReader& parent, const std::vector<std::string>& axes) {
  if (!parent.has("points")) parent.problem("points", "is missing");
  const Json* json = parent.object("points");
  if (json == nullptr || axes.empty()) return {};
  ObjectReader reader(*json, parent.path("points"), parent.problems());
  Columns columns(reader);
  std::vector<std::vector<double>> at;
  for (const std::string& axis : axes) at.push_back(columns.get(axis, 0, kMaxCoordinate));
  const auto amount = columns.get("amount", 1, kMaxAmount);
  constexpr double kShortest = 1e-12;
  const auto seconds = columns.get("seconds", kShortest, kMaxPointSeconds);
  const auto low = columns.get("seconds_low", kShortest, kMaxPointSeconds);
  const auto high = columns.get("seconds_high", kShortest, kMaxPointSeconds);
  const auto worst = columns.get("seconds_worst", kShortest, kMaxPointSeconds);
  const auto samples = columns.get("num_samples", 1, kMaxCount);
  const auto outliers = columns.get("num_outliers", 0, kMaxCount);
  reader.refuse_unknown();
  if (columns.size() > kMaxCurvePoints)
    parent.problem("points", fmt::format("has {} points; allowed: at most {}", columns.size(),
                                         kMaxCurvePoints));
  if (!columns.sound()) return {};
  std::vector<CurvePoint> points(columns.size());
  for (size_t i = 0; i < points.size(); ++i) {
    for (const std::vector<double>& axis : at) points[i].at.push_back(axis[i]);
    points[i].amount = amount[i];
    points[i].timing = {seconds[i],
                        low[i],
                        high[i],
                        worst[i],
                        static_cast<int64_t>(samples[i]),
                        static_cast<int64_t>(outliers[i])};
  }
  return points;
}

Fit parse_fit(const Json& json, ObjectReader& parent, size_t num_points) {
  ObjectReader reader(json, parent.path("fit"), parent.problems());
  Fit fit;
  fit.line.latency_seconds = reader.number("latency_seconds", 0, kMaxPointSeconds);
  fit.line.bytes_per_second = reader.number("bandwidth_bytes_per_second", 1e-12, kMaxRate);
  fit.r_squared = reader.number("r_squared", 0, 1);
  fit.median_residual = reader.number("median_residual", 0, kMaxAmount);
  fit.worst_residual = reader.number("worst_residual", 0, kMaxAmount);
  const bool holes = has_holes(reader, "residuals");
  if (!holes) fit.residuals = reader.numbers("residuals", -kMaxAmount, kMaxAmount);
  if (!holes && num_points > 0 && fit.residuals.size() != num_points)
    reader.problem("residuals", fmt::format("has {} entries; allowed: {}, one for every point",
                                            fit.residuals.size(), num_points));
  reader.refuse_unknown();
  return fit;
}

Curve parse_curve(const Json& json, const std::string& path, Problems* problems) {
  ObjectReader reader(json, path, problems);
  Curve curve;
  curve.name = reader.text("name");
  curve.unit = reader.choice("unit", {"flops", "bytes", "tokens"});
  curve.axes = parse_axes(reader);
  curve.points = parse_points(reader, curve.axes);
  if (const Json* fit = reader.object("fit"))
    curve.fit = parse_fit(*fit, reader, curve.points.size());
  reader.refuse_unknown();
  return curve;
}

}  // namespace

Grid parse_grid(ObjectReader& parent, const std::string& key,
                const std::vector<std::string>& axes) {
  Grid grid;
  const Json* json = parent.object(key);
  if (json == nullptr) return grid;
  ObjectReader reader(*json, parent.path(key), parent.problems());
  grid.axes = axes;
  size_t cells = 1;
  for (const std::string& axis : axes) {
    grid.points.push_back(parse_axis(reader, axis));
    cells *= grid.points.back().size();
  }
  if (!reader.has("values")) reader.problem("values", "is missing");
  const bool holes = has_holes(reader, "values");
  if (!holes) grid.rate = reader.numbers("values", 1, kMaxRate);
  if (!holes && cells > 0 && grid.rate.size() != cells)
    reader.problem("values", fmt::format("has {} values; allowed: {}, one for every point of the "
                                         "grid",
                                         grid.rate.size(), cells));
  reader.refuse_unknown();
  return grid;
}

std::vector<Curve> parse_curves(ObjectReader& parent) {
  std::vector<Curve> curves;
  const Json* json = parent.array("curves");
  if (json == nullptr) return curves;
  if (json->size() > kMaxCurves) {
    parent.problem("curves",
                   fmt::format("has {} entries; allowed: at most {}", json->size(), kMaxCurves));
    return curves;
  }
  std::set<std::string> names;
  for (size_t i = 0; i < json->size(); ++i) {
    const std::string path = fmt::format("{}[{}]", parent.path("curves"), i);
    curves.push_back(parse_curve((*json)[i], path, parent.problems()));
    if (!names.insert(curves.back().name).second)
      parent.problems()->add(path + ".name", fmt::format("'{}' appears twice", curves.back().name));
  }
  return curves;
}

}  // namespace piper::cluster
