// Who can run a strategy: the trainers to which it can be exported, and this Piper.
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <string>
#include <vector>

namespace piper::cli {

// Names of `piper export --to` that take it, and "piper" where this Piper's executor does.
std::vector<std::string> runners_of(const model::Model& model, const strategy::Strategy& strategy);

// "megatron, nemo (piper export --to); this Piper on CPUs, and on NVIDIA GPUs as far as nobody has
// tried", or why nobody can.
std::string in_words(const std::vector<std::string>& runners);

}  // namespace piper::cli
