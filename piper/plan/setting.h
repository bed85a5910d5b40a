// A request with every blank filled in and checked.
#pragma once

#include <piper/plan/plan.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::plan {

// Why these defaults: a free batch buys MFU, so it is stated, not searched.
//   sequence      min(4096, the model's positions); on a CPU min(256, ...)
//   global batch  GPU: about 4 M tokens, and at least 4 sequences a device; CPU: 4 sequences a device, at
//                 least 16; a multiple of the devices, so that no pipeline depth is ruled out
//   precision     bf16 on GPUs that have it, else fp32
//   devices       pp x dp when both are fixed, else the whole cluster
struct Setting {
  const Request* request = nullptr;  // outlives the setting
  int64_t num_devices = 0;
  int64_t sequence = 0;
  int64_t global_batch_sequences = 0;
  strategy::Precision precision = strategy::Precision::kFp32;
  int64_t memory_limit_bytes = 0;
  std::vector<Default> defaults;

  const model::Model& model() const { return request->model; }
  const cluster::Cluster& cluster() const { return request->cluster; }
  const FixedAxes& fixed() const { return request->fixed; }
};

// Throws InvalidInput: more devices than the cluster has, a fixed axis below 1, fixed axes that
// contradict each other or the model, each with the nearest values that do not.
Setting make_setting(const Request& request);

// Divisors of n, ascending.
std::vector<int64_t> divisors(int64_t n);

// Expert degrees that divide the experts of every mixture layer, ascending; {1} for a dense model.
std::vector<int64_t> expert_degrees(const model::Model& model);

// "24 does not divide 256 experts; 16 and 32 do": the values around `value` in `allowed`
// (ascending, not empty).
std::string nearest_values(const std::vector<int64_t>& allowed, int64_t value);

}  // namespace piper::plan
