// Where the parts of a model's layers stand against one device's roofs (Williams, Waterman and
// Patterson 2009): FLOPs of one micro-batch's forward on one rank over the bytes that it must move
// through the device's memory.
//
// Bytes are the least possible: weights, inputs and outputs of a part once each, keys and values
// once, scores never (flash kernels). What is divided by tp, cp, ep and etp is divided as
// cost/trainer/layer_price.h divides it.
#pragma once

#include <piper/plan/search.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::plan {

struct RooflinePoint {
  std::string part;        // "attention projections", "routed experts", ..., "head"
  int64_t num_layers = 0;  // that have it, of the whole model; 0 for the head
  double flops = 0, bytes = 0;
  double peak_flops_per_second = 0;  // of the precision that the part computes in
  double predicted_flops_per_second =
      0;  // at the cluster's measured rates and the trainer's efficiency
  double intensity() const { return flops / bytes; }  // FLOPs a byte
};

struct Roofline {
  double peak_flops_per_second = 0, memory_bytes_per_second = 0;
  std::vector<RooflinePoint> points;
  double ridge() const { return peak_flops_per_second / memory_bytes_per_second; }
  // What the roofs allow a point.
  double attainable_flops_per_second(const RooflinePoint& point) const;
  bool is_memory_bound(const RooflinePoint& point) const;
};

// Requires a strategy of the request's model that has no contradictions. Layers that differ in
// attention or feed-forward give points of their own.
Roofline make_roofline(const Request& request, const strategy::Strategy& strategy);

}  // namespace piper::plan
