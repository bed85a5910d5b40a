// What of a strategy's communication its price hides behind compute, as far as a trainer has to be
// told: an export that leaves it out runs slower than the plan says.
#pragma once

#include <piper/cost/trainer/trainer_profile.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <string>
#include <vector>

namespace piper::exporting {

struct Overlaps {
  bool gradients = false;  // reductions beside the backward
  bool weights = false;    // gathers of updated weights beside the forward (ZeRO 1)
  bool tensor = false;     // gathers and scatters of tensor parallelism beside its products
  bool exchange = false;   // one micro-batch's all-to-alls beside another's compute
};

// Of a strategy priced by this profile. What Megatron Core does not overlap for it is false, with a
// line in `differs`: tensor parallelism without sequence parallelism; exchanges under a pipeline
// without virtual stages, recomputed in full, in fp32, or with more than one module of multi-token
// prediction (what its TransformerConfig asserts).
Overlaps overlaps_of(const cost::TrainerProfile& priced, const model::Model& model,
                     const strategy::Strategy& strategy, std::vector<std::string>& differs);

}  // namespace piper::exporting
