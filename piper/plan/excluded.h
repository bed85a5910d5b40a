// Degrees of the space that no strategy of a request has, with the equation of the Piper paper that
// excludes them (search.h) and the smallest change that would admit them: for people.
#pragma once

#include <piper/plan/search.h>

#include <string>
#include <vector>

namespace piper::plan {

struct Excluded {
  std::string degrees;          // "pp 3, 5, 6"
  std::string constraint;       // "does not divide 64 devices"
  std::string equation;         // "eq. 7"
  std::string smallest_change;  // "66 devices for pp 3"
};
std::vector<Excluded> excluded_degrees(const Request& request);

}  // namespace piper::plan
