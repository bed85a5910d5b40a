// The record that a plan is: written by `plan`, read by `estimate`, `sim` and `train`. One JSON
// document, every key documented in docs/strategy.md, unknown keys refused.
#pragma once

#include <piper/base/json.h>
#include <piper/model/model.h>
#include <piper/strategy/capacity.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace piper::strategy {

enum class PipelineSchedule { kGPipe, k1F1B };
// What a layer does not keep of its forward for its backward, and computes again (Korthikanti et al. 2022, selective and
// full recomputation). Norms are always computed again: nothing normalised is ever kept.
//   kAttention  what attention keeps besides x and x1: queries, keys, values, output, row sums
//   kExperts    what the feed-forward nets (routed, shared, dense) keep: both projections before the activation. Rows that
//               have travelled are kept: nothing is exchanged again
//   kFull       everything but the layer's input; rows travel again
enum class Recompute : uint8_t { kNone, kAttention, kExperts, kAttentionAndExperts, kFull };
inline constexpr std::array kRecomputes{Recompute::kNone, Recompute::kAttention,
                                        Recompute::kExperts, Recompute::kAttentionAndExperts,
                                        Recompute::kFull};
// kFull drops both.
constexpr bool drops_attention(Recompute r) {
  return r == Recompute::kAttention || r >= Recompute::kAttentionAndExperts;
}
constexpr bool drops_experts(Recompute r) { return r >= Recompute::kExperts; }

enum class Precision { kFp32, kBf16, kFp64 };

// The largest value of any count: far beyond any machine, and every product of three stays inside
// 64 bits.
inline constexpr int64_t kMaxCount = 1'000'000;

// Degrees of the axes. world = pp * dp; the expert mesh folds dp into ep x edp (edp = dp / ep).
struct Mesh {
  int64_t pp = 1;
  int64_t ep = 1;
  int64_t dp = 1;  // data-parallel degree of attention: all ranks of a stage; a multiple of ep
  int64_t edp() const { return dp / ep; }
  int64_t world() const { return pp * dp; }
  bool operator==(const Mesh&) const = default;
};

struct Strategy {
  std::string model;    // name, for messages
  std::string cluster;  // name, for messages
  Mesh mesh;
  std::vector<int64_t> layers_per_stage;  // sums to the model's layers; size pp
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  Recompute recompute = Recompute::kNone;
  Precision precision = Precision::kFp32;
  int64_t sequence = 0;                // tokens
  int64_t global_batch_sequences = 0;  // = dp * micro_batch_sequences * num_micro_batches
  int64_t micro_batch_sequences = 0;   // per rank
  int64_t num_micro_batches = 0;       // per rank and step
  Capacity capacity;                   // of every expert; dropless when left out
  int64_t mtp_depth = 0;               // modules of multi-token prediction: model::Model::mtp_depth
  Json predicted;  // what the planner foretold (free form: written by plan, shown by report)
};

// The default split: as even as it goes. The remainder goes to the inner stages first, later ones
// before earlier ones, then to the last stage, never to the first: embedding and head weigh on the
// two ends, and under 1F1B the first stage holds the most activations. 7 layers on 4 stages: 1 2 2
// 2; on 5: 1 1 2 2 1. Requires 1 <= pp <= layers.
std::vector<int64_t> even_split(int64_t layers, int64_t pp);

Json to_json(const Strategy& strategy);
// Every key but `model`, `cluster`, `predicted`, the derived `mesh.edp` and the pair `capacity_factor`
// and `drop` (without them: dropless) is required: a strategy has no silent defaults. Throws InvalidInput with all problems (also contradictions: degrees,
// products, sums).
Strategy parse_strategy(const Json& json, const std::string& source);
// All contradictions of a strategy with itself and with the model: one line each, without a prefix:
//   'mesh.ep' is 3; allowed: a divisor of 'mesh.dp' 4 (1, 2, 4)
// Never throws; any field may hold any value.
std::vector<std::string> contradictions(const Strategy& strategy, const model::Model& model);
// Those that show without a model.
std::vector<std::string> contradictions(const Strategy& strategy);

const char* name(PipelineSchedule schedule);  // "gpipe", "1f1b"
// "none", "attention", "experts", "attention+experts", "full"
const char* name(Recompute recompute);
// By name; "norm" is kNone, since norms are always computed again, and "all" is kFull.
std::optional<Recompute> recompute_from(std::string_view name);
const char* name(Precision precision);  // "fp32", "bf16", "fp64"

}  // namespace piper::strategy
