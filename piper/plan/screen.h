// Which shapes a search by exact costs looks at on many GPUs, where walking the tasks of every
// strategy takes minutes to hours. Of each shape the plain strategies are judged by what takes no
// walk: 1F1B (or what is fixed), an even split, every recomputation and ZeRO, and as little on the
// host as fits; a lower bound of their bytes tells whether one fits, and their seconds are exact but
// for sums of gradients. The best shapes of all and of each family are then searched as on few GPUs.
#pragma once

#include <piper/cost/estimator.h>
#include <piper/plan/search.h>
#include <piper/strategy/strategy.h>

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace piper::plan {

// Whether a search of the request screens its shapes.
bool screens(const Request& request);

struct ShapeScore {
  double seconds = std::numeric_limits<double>::infinity();  // of the fastest that may fit
  double bytes = std::numeric_limits<double>::infinity();    // of the smallest that was looked at
  Family family = Family::kDataAndExperts;                   // of the one or the other
};
// `shape`: with its mesh, micro-batch and exchange.
ShapeScore score_shape(const Request& request, cost::Estimator& estimator,
                       const strategy::Strategy& shape);

// Numbers of those that should be searched, the best first: kMostScreened that may fit, and
// kMostOfFamily of each family.
inline constexpr size_t kMostScreened = 64, kMostOfFamily = 4;
std::vector<size_t> screened(std::span<const ShapeScore> scores);

}  // namespace piper::plan
