// What this Piper's executor executes of the strategies that it can price.
#pragma once

#include <piper/strategy/strategy.h>

#include <string>
#include <vector>

namespace piper::strategy {

// Whether the executor executes it.
bool runs(Precision precision);

// Why a model's layers cannot be dealt to the ranks that share their matrices, one line each
// ("'mesh.tp' is 3: layer 0: 8 heads ..."); empty when they can.
std::vector<std::string> not_divisible_by_tp(const Strategy& strategy, const model::Model& model);

// Why the executor cannot train with it, one line a reason ("'precision' is fp8: it is priced, not
// executed"); empty when it can. Never throws. With a model: not_divisible_by_tp(), too.
std::vector<std::string> not_runnable(const Strategy& strategy);
std::vector<std::string> not_runnable(const Strategy& strategy, const model::Model& model);

// All that stands in the way of training the model with it: these, behind what the executor lacks
// for the model with any strategy (model::untrainable()).
std::vector<std::string> untrainable(const model::Model& model, const Strategy& strategy);

// The nearest strategy that the executor executes on as many ranks: what it lacks goes into dp (tp
// stays where the model's layers can be shared by so many, cp where sequences can), with the
// same global batch; the depth, the degrees of the experts and the micro-batch stay where they
// divide.
// Requires contradictions(strategy, model) to be empty. Returns the strategy itself when it is
// runnable.
Strategy nearest_runnable(const Strategy& strategy, const model::Model& model);

}  // namespace piper::strategy
