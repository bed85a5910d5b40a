// Which of the axes that the user fixed contradict each other, when they leave the search over
// every axis nothing to price.
#pragma once

#include <piper/plan/search.h>
#include <piper/plan/shapes.h>

#include <vector>

namespace piper::plan {

// Whether the fixed axes leave anything to price. `shapes`: shapes_of(request).
bool leaves_any(const Request& request, const std::vector<Shape>& shapes);

// `shapes`: shapes_of(request). Returns when any strategy is left; else throws InvalidInput that
// names a smallest set of fixed axes that leaves none, and the nearest values that would leave
// some.
void refuse_contradictions(const Request& request, const std::vector<Shape>& shapes);

}  // namespace piper::plan
