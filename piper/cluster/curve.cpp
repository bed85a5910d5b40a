#include <piper/base/error.h>
#include <piper/cluster/curve.h>

#include <algorithm>

namespace piper::cluster {

const Curve* find_curve(const std::vector<Curve>& curves, const std::string& name) {
  const auto found = std::ranges::find(curves, name, &Curve::name);
  return found == curves.end() ? nullptr : &*found;
}

size_t axis_of(const Curve& curve, const std::string& axis) {
  const auto found = std::ranges::find(curve.axes, axis);
  PIPER_CHECK(found != curve.axes.end(), "a curve without that axis");
  return static_cast<size_t>(found - curve.axes.begin());
}

std::vector<Sample> samples_of(const Curve& curve) {
  std::vector<Sample> samples;
  for (const CurvePoint& point : curve.points)
    samples.push_back({point.amount, point.timing.seconds});
  return samples;
}

}  // namespace piper::cluster
