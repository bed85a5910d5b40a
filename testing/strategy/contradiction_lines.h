// What contradicts itself in a strategy, as the lines that a user reads.
#pragma once

#include <piper/strategy/strategy.h>

#include <string>
#include <vector>

namespace piper::strategy {

using Lines = std::vector<std::string>;

inline Lines lines_of(const Strategy& s, const model::Model& model) {
  return texts_of(contradictions(s, model));
}

}  // namespace piper::strategy
