// Which shapes a search by exact costs looks at on many GPUs, where walking the tasks of every
// strategy takes minutes to hours. A shape is judged by its plain strategies and by what takes no
// walk: 1F1B (or what is fixed), an even split, every recomputation and ZeRO, and as little on the
// host as fits; a lower bound of their bytes, 1F1B's, tells whether one fits. The best shapes of
// all and of each family are then searched as on few GPUs.
#pragma once

#include <piper/cost/estimator.h>
#include <piper/plan/search.h>
#include <piper/strategy/strategy.h>

#include <cstddef>
#include <vector>

namespace piper::plan {

// Whether a search of the request screens its shapes.
bool screens(const Request& request);

// How good a shape is in one family: its strategies with ZeRO 3 are of another one than the rest.
struct ShapeScore {
  size_t shape = 0;  // a number
  Family family = Family::kDataAndExperts;
  double seconds = kInfinity;  // of the fastest that may fit
  double bytes = kInfinity;    // of the smallest that was looked at
};
// `strategy`: with the shape's mesh, micro-batch, exchange and order of its mixture layers.
std::vector<ShapeScore> scores_of(const Request& request, cost::Estimator& estimator, size_t shape,
                                  const strategy::Strategy& strategy);

// Shapes that should be searched, the best first: kMostScreened, and kMostOfFamily of each family.
inline constexpr size_t kMostScreened = 64, kMostOfFamily = 4;
std::vector<size_t> screened(std::vector<ShapeScore> scores);

}  // namespace piper::plan
