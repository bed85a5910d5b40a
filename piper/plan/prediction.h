// What is foretold about one strategy: step time by component, memory by stage and component, MFU
// with its formula and peak. The record that reports and the run are compared with.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/mfu.h>
#include <piper/cost/step_time.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <string>

namespace piper::plan {

enum class Method { kClosedForm, kSimulation };
const char* name(Method method);  // "closed form", "simulation"

struct Prediction {
  Method method = Method::kClosedForm;
  double step_seconds = 0;
  double closed_form_seconds = 0;  // also when simulated
  double mfu = 0;
  double tokens_per_second = 0;
  double step_flops = 0;
  double peak_flops_per_second = 0;  // of all devices
  cost::EffectiveMfu effective;      // eq. 12
  cost::StepEstimate estimate;       // breakdown and memory, from the closed form
  int64_t peak_bytes = 0;            // of the fullest rank
  int64_t memory_bytes = 0;          // of one device
};

// Fills in everything from an estimate. `simulated_seconds` < 0: not simulated.
Prediction make_prediction(const model::Model& model, const cluster::Cluster& cluster,
                           const strategy::Strategy& strategy, const cost::StepEstimate& estimate,
                           double simulated_seconds = -1);

// Keys carry units: mfu, step_seconds, peak_bytes, mfu_formula, peak_flops_per_second,
// tokens_per_second, method, time {...}, memory {...}, mfu_effective {...}.
Json to_json(const Prediction& prediction);

// What costs most, for people: "pipeline bubble 24.1 %, exchange 18.0 %; compute 55 % ...".
std::string limits(const Prediction& prediction);

}  // namespace piper::plan
