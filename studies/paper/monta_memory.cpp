#include <piper/base/error.h>
#include <piper/strategy/state_bytes.h>
#include <studies/paper/monta_memory.h>
#include <studies/real.h>

namespace piper::studies::paper::monta {
namespace {

// Returns the bytes of one parameter, replicated d times, before it is divided into shards.
double parameter_bytes(int64_t zero, int64_t replicas) {
  const double d = real(replicas);
  switch (zero) {
    case 0:
      return 16;
    case 1:
      return 4 + 12 / d;
    case 2:
      return 2 + 14 / d;
    case 3:
      return 16 / d;
    default:
      PIPER_CHECK(false, "ZeRO has the stages 0 to 3");
  }
}

}  // namespace

double state_bytes(const Shape& shape, const Degrees& d, int64_t zero) {
  const double shards = real(d.pp) * real(d.tp);
  return shape.dense_parameters * parameter_bytes(zero, d.dp) / shards +
         shape.expert_parameters * parameter_bytes(zero, d.edp) / (shards * real(d.ep));
}

const char* name(Activations row) {
  switch (row) {
    case Activations::kNotParallel:
      return "without parallelism";
    case Activations::kTensor:
      return "PP+TP+EP";
    case Activations::kSequence:
      return "PP+TP+EP+SP";
    case Activations::kSelective:
      return "PP+TP+EP+SP, selective recomputation";
    case Activations::kFull:
      return "PP+TP+EP+SP, full recomputation";
  }
  PIPER_CHECK(false, "no such row");
}

double activation_bytes(const Shape& s, const Degrees& d, Activations row) {
  const double elements = s.micro_batch * s.sequence * s.hidden * s.num_layers;
  const double k = s.top_k, t = real(d.tp), e = real(d.ep);
  const double scores = 5 * s.num_heads * s.sequence / s.hidden;
  switch (row) {
    case Activations::kNotParallel:
      return elements * (13 + 21 * k + scores);
    case Activations::kTensor:
      return elements * (5 + 5 * k / e + (8 + 16 * k / e) / t + scores / t);
    case Activations::kSequence:
      return elements * ((13 + 21 * k) / t + scores / t);
    case Activations::kSelective:
      return elements * (13 + 21 * k) / t;
    case Activations::kFull:
      return 2 * elements / t;
  }
  PIPER_CHECK(false, "no such row");
}

double memory_bytes(const Shape& shape, const Degrees& d, int64_t zero, Activations row) {
  return state_bytes(shape, d, zero) + activation_bytes(shape, d, row);
}

}  // namespace piper::studies::paper::monta
