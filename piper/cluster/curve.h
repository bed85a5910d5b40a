// Measured curves as they came from the clock, point by point: what a machine's figures were taken
// from, what the report draws, and what nothing else reads. (The grids and links of cluster.h are
// what prices are made of.)
#pragma once

#include <piper/cluster/fit.h>
#include <piper/cluster/timing.h>

#include <optional>
#include <string>
#include <vector>

namespace piper::cluster {

struct CurvePoint {
  std::vector<double> at;  // one coordinate an axis of the curve
  double amount = 0;       // of work: FLOPs, bytes or tokens of one repetition
  Timing timing;           // of one repetition
  double rate() const { return amount / timing.seconds; }  // per second
};

struct Curve {
  std::string name;               // "attention.fp32", "all-to-all"
  std::string unit;               // of the amounts: "flops", "bytes" or "tokens"
  std::vector<std::string> axes;  // {"batch", "sequence"}; the names are those of the JSON columns
  std::vector<CurvePoint> points;
  // Only links have a fit, T(n) = alpha + beta n over the amounts, with one residual a point.
  std::optional<Fit> fit;
};

// The curve of a name; nullptr when there is none.
const Curve* find_curve(const std::vector<Curve>& curves, const std::string& name);

// The index of an axis in a curve. Requires it to be there (PIPER_CHECK).
size_t axis_of(const Curve& curve, const std::string& axis);

// Bytes and seconds of the points, as fit_alpha_beta() takes them.
std::vector<Sample> samples_of(const Curve& curve);

}  // namespace piper::cluster
