#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/cost/grouped_choice.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>

namespace piper::cost {
namespace {

double apart(const ExpertsSize& a, const ExpertsSize& b) {
  return std::abs(std::log(a.rows / b.rows)) +
         std::abs(std::log(a.hidden * a.ffn / (b.hidden * b.ffn))) +
         std::abs(std::log(a.experts / b.experts));
}

}  // namespace

GroupedChoice GroupedChoice::parse(std::string_view text) {
  const auto refuse = [&] {
    throw InvalidInput(
        fmt::format("'{}' is no choice of experts' products; allowed: rows, hidden, ffn, experts "
                    "and g or o of each measured point, such as '4 256 512 8 g'",
                    text));
  };
  std::vector<Point> points;
  std::istringstream all{std::string(text)};
  for (std::string one; std::getline(all, one, ',');) {
    std::istringstream words(one);
    Point point;
    char letter = 0;
    std::string more;
    words >> point.size.rows >> point.size.hidden >> point.size.ffn >> point.size.experts >> letter;
    const bool is_whole = !words.fail() && !(words >> more);
    const auto is_size = [](double size) { return std::isfinite(size) && size > 0; };
    if (!is_whole || (letter != 'g' && letter != 'o') || !is_size(point.size.rows) ||
        !is_size(point.size.hidden) || !is_size(point.size.ffn) || !is_size(point.size.experts))
      refuse();
    point.is_grouped = letter == 'g';
    points.push_back(point);
  }
  if (points.empty()) refuse();
  return GroupedChoice(std::move(points));
}

bool GroupedChoice::of(const ExpertsSize& size) const {
  bool is_grouped = true;
  double least = std::numeric_limits<double>::infinity();
  for (const Point& point : points_) {
    const double distance = apart(size, point.size);
    if (distance >= least) continue;
    least = distance;
    is_grouped = point.is_grouped;
  }
  return is_grouped;
}

int64_t GroupedChoice::num_grouped() const {
  return std::ranges::count(points_, true, &Point::is_grouped);
}

std::string GroupedChoice::text() const {
  std::vector<std::string> words;
  for (const auto& [size, is_grouped] : points_)
    words.push_back(fmt::format("{:g} {:g} {:g} {:g} {}", size.rows, size.hidden, size.ffn,
                                size.experts, is_grouped ? 'g' : 'o'));
  return fmt::format("{}", fmt::join(words, ", "));
}

GroupedChoice grouped_choice_of(const cluster::Cluster& cluster) {
  const cluster::Curve* one_by_one = cluster::find_curve(cluster.curves, "expert_gemm.bf16");
  const cluster::Curve* grouped = cluster::find_curve(cluster.curves, "expert_gemm_grouped.bf16");
  if (cluster.kind != "gpu" || one_by_one == nullptr || grouped == nullptr) return {};
  constexpr size_t kSizes = 4;                  // rows, hidden, ffn, experts; the skew is the fifth
  std::map<std::vector<double>, double> gains;  // seconds
  for (const cluster::CurvePoint& point : grouped->points) {
    const auto other = std::ranges::find(one_by_one->points, point.at, &cluster::CurvePoint::at);
    if (other == one_by_one->points.end() || point.at.size() <= kSizes) continue;
    gains[{point.at.begin(), point.at.begin() + kSizes}] +=
        other->timing.seconds - point.timing.seconds;
  }
  std::vector<GroupedChoice::Point> points;
  for (const auto& [at, gain] : gains)
    points.push_back({{.rows = at[0], .hidden = at[1], .ffn = at[2], .experts = at[3]}, gain >= 0});
  return GroupedChoice(std::move(points));
}

GroupedChoice grouped_choice_of(const cluster::Cluster& cluster, strategy::Precision precision) {
  const bool is_measured = strategy::priced_as(precision) == strategy::Precision::kBf16;
  return is_measured ? grouped_choice_of(cluster) : GroupedChoice();
}

}  // namespace piper::cost
