// Which models this Piper trains, whatever the strategy.
#pragma once

#include <piper/model/model.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::model {

// Why this Piper cannot train the model on sequences of so many tokens, one line each; empty: it
// can. A reason that holds for several layers is told once, with the first of them. 0 tokens: on
// short ones.
std::vector<std::string> untrainable(const Model& model, int64_t sequence = 0);

}  // namespace piper::model
