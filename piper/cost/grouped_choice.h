// For which experts one product for all of them (experts_grouped.h) is faster on a device than one
// product an expert, as `piper profile --device` measured it.
//
// The two differ in their last bits, so that all ranks of a run choose alike, and a run that goes
// on chooses as it began.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace piper::cost {

// Experts of a rank: their number, the mean rows of one of them, and the sizes of its matrices.
struct ExpertsSize {
  double rows = 0, hidden = 0, ffn = 0, experts = 0;
};

// A value; the default has measured nothing and takes one product for all.
class GroupedChoice {
 public:
  struct Point {
    ExpertsSize size;
    bool is_grouped = true;
  };

  GroupedChoice() = default;
  explicit GroupedChoice(std::vector<Point> points) : points_(std::move(points)) {}
  // Throws InvalidInput when `text` is not what text() gives.
  static GroupedChoice parse(std::string_view text);

  bool is_measured() const { return !points_.empty(); }
  // As at the measured point that is nearest by its ratios: of the rows, of the matrices' elements
  // and of the number of experts. The first of equally near ones.
  bool of(const ExpertsSize& size) const;
  int64_t num_grouped() const;
  int64_t num_points() const { return std::ssize(points_); }
  // "4 256 512 8 g, 16 256 512 8 o": rows, hidden, ffn, experts; g for one product, o for one by
  // one.
  std::string text() const;

 private:
  std::vector<Point> points_;
};

// The faster of the two ways to compute experts in bf16 (profile/shape_curves.h) at each size, over
// all skews together. It knows no sizes without both curves, or where they were measured on a CPU,
// whose experts are computed one by one.
GroupedChoice grouped_choice_of(const cluster::Cluster& cluster);
// By which the memory of a step of this precision is counted: in bf16 that; else nothing measured,
// and experts one by one. Where nothing is measured a device that can computes them as one product
// all the same, and more is needed there than is counted.
GroupedChoice grouped_choice_of(const cluster::Cluster& cluster, strategy::Precision precision);

}  // namespace piper::cost
