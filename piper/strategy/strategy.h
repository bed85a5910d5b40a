// The record that a plan is: written by `plan`, read by `estimate`, `sim` and `train`. One JSON
// document, every key documented in docs/strategy.md, unknown keys refused.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/base/traits.h>
#include <piper/model/model.h>
#include <piper/strategy/capacity.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace piper::strategy {

// Order of the micro-batches on a stage, and where a backward is split into its two parts (gradient
// of the input, of the weights):
//   kGPipe        all forwards, then all backwards
//   k1F1B         Narayanan et al. 2019 (PipeDream-flush)
//   kInterleaved  Narayanan et al. 2021: vpp chunks a rank, dealt round robin
//   kZbH1, kZbV   Qi et al. 2024, zero bubble; V: two chunks a rank, the second on the way back
//   kDualPipeV    DeepSeek 2025: the V with forward and backward of two micro-batches overlapped
//   k1F1BPairs, kInterleavedPairs  1F1B and interleaved with each forward overlapped with the
//                 backward behind it, a forward more ahead so that these are of two micro-batches
//                 (Megatron-LM, --overlap-moe-expert-parallel-comm)
enum class PipelineSchedule : uint8_t {
  kGPipe,
  k1F1B,
  kInterleaved,
  kZbH1,
  kZbV,
  kDualPipeV,
  k1F1BPairs,
  kInterleavedPairs
};
struct PipelineScheduleTraits {
  PipelineSchedule value;
  const char* name;
  bool is_v;  // two chunks a rank in the shape of a V: the first rank holds both ends of the model
  bool interleaves;  // two chunks a rank or more, dealt round robin
  bool splits_backward;
  bool pairs;  // forward and backward of two micro-batches overlap
};
inline constexpr std::array kPipelineScheduleTraits{
    PipelineScheduleTraits{PipelineSchedule::kGPipe, "gpipe", false, false, false, false},
    PipelineScheduleTraits{PipelineSchedule::k1F1B, "1f1b", false, false, false, false},
    PipelineScheduleTraits{PipelineSchedule::kInterleaved, "interleaved", false, true, false,
                           false},
    PipelineScheduleTraits{PipelineSchedule::kZbH1, "zb-h1", false, false, true, false},
    PipelineScheduleTraits{PipelineSchedule::kZbV, "zb-v", true, false, true, false},
    PipelineScheduleTraits{PipelineSchedule::kDualPipeV, "dualpipev", true, false, true, true},
    PipelineScheduleTraits{PipelineSchedule::k1F1BPairs, "1f1b-pairs", false, false, false, true},
    PipelineScheduleTraits{PipelineSchedule::kInterleavedPairs, "interleaved-pairs", false, true,
                           false, true}};
static_assert(are_in_order(kPipelineScheduleTraits));
constexpr const auto& rows(PipelineSchedule) { return kPipelineScheduleTraits; }
inline constexpr auto kPipelineSchedules = values_of<PipelineSchedule>();
constexpr bool is_v(PipelineSchedule s) { return traits(s).is_v; }
constexpr bool interleaves(PipelineSchedule s) { return traits(s).interleaves; }
constexpr bool splits_backward(PipelineSchedule s) { return traits(s).splits_backward; }
constexpr bool pairs(PipelineSchedule s) { return traits(s).pairs; }
// The two of a pair may compute with the same layers, whose weights ZeRO 3 gathers for one of them.
constexpr bool pairs_share_layers(PipelineSchedule s) { return pairs(s) && !is_v(s); }

// What a layer does not keep of its forward for its backward, and computes again (Korthikanti et
// al. 2022, selective and full recomputation). Norms are always computed again: nothing normalised
// is ever kept.
//   kAttention  what attention keeps besides x and x1: queries, keys, values, output, row sums
//   kExperts    what the feed-forward nets (routed, shared, dense) keep: both projections before
//               the activation. Rows that have travelled are kept: nothing is exchanged again
//   kFull       everything but the layer's input; rows travel again
enum class Recompute : uint8_t { kNone, kAttention, kExperts, kAttentionAndExperts, kFull };
struct RecomputeTraits {
  Recompute value;
  const char* name;
  bool drops_attention, drops_experts;
};
inline constexpr std::array kRecomputeTraits{
    RecomputeTraits{Recompute::kNone, "none", false, false},
    RecomputeTraits{Recompute::kAttention, "attention", true, false},
    RecomputeTraits{Recompute::kExperts, "experts", false, true},
    RecomputeTraits{Recompute::kAttentionAndExperts, "attention+experts", true, true},
    RecomputeTraits{Recompute::kFull, "full", true, true}};
static_assert(are_in_order(kRecomputeTraits));
constexpr const auto& rows(Recompute) { return kRecomputeTraits; }
inline constexpr auto kRecomputes = values_of<Recompute>();
constexpr bool drops_attention(Recompute r) { return traits(r).drops_attention; }
constexpr bool drops_experts(Recompute r) { return traits(r).drops_experts; }

// GEMMs compute in it. With kFp8, kMxfp8 and kNvfp4, weights and activations between operations are
// bf16, and operands are converted before each product: kFp8 with one scale a tensor, kMxfp8 with
// one for 32 values, kNvfp4 with one for 16. kFp16 has the bytes and the price of kBf16, beside the
// same master weights in fp32; its trainers scale the loss.
enum class Precision : uint8_t { kFp32, kBf16, kFp64, kFp8, kMxfp8, kNvfp4, kFp16 };
struct PrecisionTraits {
  Precision value;
  const char* name;
  bool runs;               // this Piper executes it
  bool converts_operands;  // before each product, from bf16
  Precision priced_as;     // whose measured figures and choices are its own
};
inline constexpr std::array kPrecisionTraits{
    PrecisionTraits{Precision::kFp32, "fp32", true, false, Precision::kFp32},
    PrecisionTraits{Precision::kBf16, "bf16", true, false, Precision::kBf16},
    PrecisionTraits{Precision::kFp64, "fp64", true, false, Precision::kFp64},
    PrecisionTraits{Precision::kFp8, "fp8", false, true, Precision::kFp8},
    PrecisionTraits{Precision::kMxfp8, "mxfp8", false, true, Precision::kMxfp8},
    PrecisionTraits{Precision::kNvfp4, "nvfp4", false, true, Precision::kNvfp4},
    PrecisionTraits{Precision::kFp16, "fp16", false, false, Precision::kBf16}};
static_assert(are_in_order(kPrecisionTraits));
constexpr const auto& rows(Precision) { return kPrecisionTraits; }
inline constexpr auto kPrecisions = values_of<Precision>();
constexpr bool converts_operands(Precision p) { return traits(p).converts_operands; }
constexpr Precision priced_as(Precision p) { return traits(p).priced_as; }

// What lives in host memory between its uses.
enum class Offload : uint8_t { kNone, kOptimizer, kActivations, kOptimizerAndActivations };
struct OffloadTraits {
  Offload value;
  const char* name;
  bool optimizer, activations;
};
inline constexpr std::array kOffloadTraits{
    OffloadTraits{Offload::kNone, "none", false, false},
    OffloadTraits{Offload::kOptimizer, "optimizer", true, false},
    OffloadTraits{Offload::kActivations, "activations", false, true},
    OffloadTraits{Offload::kOptimizerAndActivations, "optimizer+activations", true, true}};
static_assert(are_in_order(kOffloadTraits));
constexpr const auto& rows(Offload) { return kOffloadTraits; }
inline constexpr auto kOffloads = values_of<Offload>();
constexpr bool offloads_optimizer(Offload o) { return traits(o).optimizer; }
constexpr bool offloads_activations(Offload o) { return traits(o).activations; }

// Which axis neighbouring devices differ in, innermost first; tensor, context and expert groups
// come first in both.
//   kDataInside      tp-cp-ep-dp-pp: a stage's ranks stay together, messages between stages travel
//                    far
//   kPipelineInside  tp-cp-ep-pp-dp: a pipeline's ranks stay together, gradients travel far
enum class Placement : uint8_t { kDataInside, kPipelineInside };
inline constexpr std::array kPlacementTraits{
    NamedValue<Placement>{Placement::kDataInside, "tp-cp-ep-dp-pp"},
    NamedValue<Placement>{Placement::kPipelineInside, "tp-cp-ep-pp-dp"}};
static_assert(are_in_order(kPlacementTraits));
constexpr const auto& rows(Placement) { return kPlacementTraits; }
inline constexpr auto kPlacements = values_of<Placement>();

// How rows travel to their experts: the algorithms of piper/collective/algorithms.h, one header
// each.
//   kFlat         rotated by rank, everything at once
//   kNodeAware    the same in an order that spares the NICs
//   kNaive        the same in the order of ranks
//   kPairwise     in rounds
//   kWindowed     node-aware, a few in flight
//   kBruck        in log2 n rounds by way of others
//   kTwoD         inside the node first, then between nodes (2DH)
//   kLeader       by way of one rank a node
//   kHaloPrinted  HALO as printed
//   kHaloSwitch   HALO by switch group
//   kHalo         HALO in overlapping chunks
//   kThreeLevel   HALO over node, group and beyond
//   kHaloDedup    HALO with deduplication: tokens, not copies; needs to know routes, not counts
//                 alone
enum class AllToAll : uint8_t {
  kFlat,
  kNodeAware,
  kNaive,
  kPairwise,
  kWindowed,
  kBruck,
  kTwoD,
  kLeader,
  kHaloPrinted,
  kHaloSwitch,
  kHalo,
  kThreeLevel,
  kHaloDedup
};
struct AllToAllTraits {
  AllToAll value;
  const char* name;
  bool forwards;     // rows go by way of others, who must know how many; else straight
  bool stages;       // inside a node and between nodes are stages of their own: one node has none
  bool is_cut;       // into pieces of Strategy::all_to_all_chunk_bytes
  bool from_counts;  // moves rows as they are, written from counts alone
};
inline constexpr std::array kAllToAllTraits{
    AllToAllTraits{AllToAll::kFlat, "flat", false, false, false, true},
    AllToAllTraits{AllToAll::kNodeAware, "node-aware", false, false, false, true},
    AllToAllTraits{AllToAll::kNaive, "naive", false, false, false, true},
    AllToAllTraits{AllToAll::kPairwise, "pairwise", false, false, false, true},
    AllToAllTraits{AllToAll::kWindowed, "windowed", false, false, false, true},
    AllToAllTraits{AllToAll::kBruck, "bruck", true, false, false, true},
    AllToAllTraits{AllToAll::kTwoD, "2d", true, true, false, true},
    AllToAllTraits{AllToAll::kLeader, "leader", true, true, false, true},
    AllToAllTraits{AllToAll::kHaloPrinted, "halo-printed", true, true, false, true},
    AllToAllTraits{AllToAll::kHaloSwitch, "halo-switch", true, true, true, true},
    AllToAllTraits{AllToAll::kHalo, "halo", true, true, true, true},
    AllToAllTraits{AllToAll::kThreeLevel, "three-level", true, true, false, true},
    AllToAllTraits{AllToAll::kHaloDedup, "halo-dedup", true, true, true, false}};
static_assert(are_in_order(kAllToAllTraits));
constexpr const auto& rows(AllToAll) { return kAllToAllTraits; }
inline constexpr auto kEveryAllToAll = values_of<AllToAll>();
// Those that are written from counts alone.
inline constexpr auto kAllToAlls = [] {
  constexpr auto is_plain = [](const AllToAllTraits& row) { return row.from_counts; };
  std::array<AllToAll, std::ranges::count_if(kAllToAllTraits, is_plain)> plain{};
  size_t i = 0;
  for (const AllToAllTraits& row : kAllToAllTraits)
    if (is_plain(row)) plain[i++] = row.value;
  return plain;
}();

// How gradients are summed over the ranks that hold the same parameters: everyone to the owner of
// each share and back, or inside the nodes first, so that one sum of a node crosses
// (collective/reductions.h).
enum class Reduction : uint8_t { kDirect, kHierarchical };
inline constexpr std::array kReductionTraits{
    NamedValue<Reduction>{Reduction::kDirect, "direct"},
    NamedValue<Reduction>{Reduction::kHierarchical, "hierarchical", "inside nodes first"}};
static_assert(are_in_order(kReductionTraits));
constexpr const auto& rows(Reduction) { return kReductionTraits; }
inline constexpr auto kReductions = values_of<Reduction>();

// When the sums of a layer's gradients start, once the layer's last backward is done.
//   kReady     at once: they share the links with what else travels (DDP; Megatron-LM's
//              --overlap-grad-reduce)
//   kYielding  exchanges of experts, keys and values, and messages between stages go first
//              (the priorities of MoNTA, Guo et al. 2024): whenever one of these has ended, half of
//              the buffers that wait are summed, one after the other. They are places in the graph,
//              so that all ranks decide alike.
//   kEnd       behind the step's last backward and its message
// With ZeRO 2 and 3 gradients leave at once, since their memory is given back.
enum class ReductionStart : uint8_t { kReady, kYielding, kEnd };
inline constexpr std::array kReductionStartTraits{
    NamedValue<ReductionStart>{ReductionStart::kReady, "ready", "as soon as a layer's are there"},
    NamedValue<ReductionStart>{ReductionStart::kYielding, "yielding",
                               "exchanges and messages first"},
    NamedValue<ReductionStart>{ReductionStart::kEnd, "end", "behind the last backward"}};
static_assert(are_in_order(kReductionStartTraits));
constexpr const auto& rows(ReductionStart) { return kReductionStartTraits; }
inline constexpr auto kReductionStarts = values_of<ReductionStart>();
// Under kYielding half of the sums that wait start behind one exchange or message.
constexpr size_t num_let_pass(size_t num_waiting) { return (num_waiting + 1) / 2; }

// How ranks that share a sequence exchange keys and values (context parallelism).
//   kRing    each rank's pass from neighbour to neighbour while attention works on those that have
//            arrived (Liu et al. 2023; Megatron-LM: p2p)
//   kGather  all are gathered in front of attention (Megatron-LM: all_gather)
enum class ContextExchange : uint8_t { kRing, kGather };
inline constexpr std::array kContextExchangeTraits{
    NamedValue<ContextExchange>{ContextExchange::kRing, "ring", "beside attention"},
    NamedValue<ContextExchange>{ContextExchange::kGather, "gather", "in front of it"}};
static_assert(are_in_order(kContextExchangeTraits));
constexpr const auto& rows(ContextExchange) { return kContextExchangeTraits; }
inline constexpr auto kContextExchanges = values_of<ContextExchange>();

// How a mixture layer's parts follow each other (piper/schedule/moe_layer). Parm's (Pan et al.
// 2024) and MoNTA's (Guo et al. 2024) are of tokens that tensor-parallel ranks hold alike, if there
// are such ranks; only the baseline runs without.
//   kPlain          one after the other
//   kChunked        rows in chunks of tokens: one chunk travels while another is computed
//   kFasterMoe      rows in groups of the ranks that they go to, nearest ranks first: one group
//                   travels while another is computed (He et al. 2022, FasterMoE, smart schedule)
//   kParmBaseline   ranks that share experts gather their tokens before the gate, and each of them
//                   sends the rows of all
//   kParmS1         each rank takes its share of the tokens before the gate, and all gather the
//                   layer's output
//   kParmS2         each rank takes its share of every expert's rows behind the gate, and all
//                   gather the rows that have come back; in chunks, each beside the next one's
//                   exchange
//   kMontaO1, -O2   the same, at once and in chunks
//   kMontaO3        and the copies of a chunk beside the next one's gather
enum class MoeSchedule : uint8_t {
  kPlain,
  kChunked,
  kFasterMoe,
  kParmBaseline,
  kParmS1,
  kParmS2,
  kMontaO1,
  kMontaO2,
  kMontaO3
};
struct MoeScheduleTraits {
  MoeSchedule value;
  const char* name;
  MoeSchedule nearest;           // that this Piper executes: itself, or what comes closest
  bool has_chunks;               // Strategy::moe_chunks counts
  bool needs_replicated_tokens;  // of ranks that share matrices and hold the same tokens
  bool divides_rows;             // of the same tokens among them, behind the gate
  bool fuses_exchange;           // with what ranks that share experts' matrices gather and sum
  bool gathers_tokens;           // of ranks that share experts' matrices, before the gate
  bool groups_peers;             // chunks are of ranks that rows go to, not of tokens
  const char* help;              // what the name does not say, for --help
};
inline constexpr std::array kMoeScheduleTraits{
    MoeScheduleTraits{MoeSchedule::kPlain, "plain", MoeSchedule::kPlain, false, false, false, false,
                      false, false, ""},
    MoeScheduleTraits{MoeSchedule::kChunked, "chunked", MoeSchedule::kChunked, true, false, false,
                      false, false, false,
                      "where the rows of one chunk of tokens travel while another is computed"},
    MoeScheduleTraits{MoeSchedule::kFasterMoe, "fastermoe", MoeSchedule::kFasterMoe, true, false,
                      false, false, false, true,
                      "likewise with groups of the ranks that rows go to"},
    MoeScheduleTraits{MoeSchedule::kParmBaseline, "parm-baseline", MoeSchedule::kParmBaseline,
                      false, false, false, false, true, false,
                      "where ranks of etp gather their tokens"},
    MoeScheduleTraits{MoeSchedule::kParmS1, "parm-s1", MoeSchedule::kParmS1, false, true, false,
                      true, false, false,
                      "where ranks of tp divide the tokens that they hold alike"},
    MoeScheduleTraits{MoeSchedule::kParmS2, "parm-s2", MoeSchedule::kParmS2, true, true, true, true,
                      false, false, "where they divide every expert's rows, in chunks"},
    MoeScheduleTraits{MoeSchedule::kMontaO1, "monta-o1", MoeSchedule::kMontaO1, false, true, true,
                      false, false, false, "likewise at once, exchanged over ep alone"},
    MoeScheduleTraits{MoeSchedule::kMontaO2, "monta-o2", MoeSchedule::kMontaO2, true, true, true,
                      false, false, false, "likewise in chunks"},
    MoeScheduleTraits{MoeSchedule::kMontaO3, "monta-o3", MoeSchedule::kMontaO2, true, true, true,
                      false, false, false,
                      "and the copies of a chunk beside the next one's gather"}};
static_assert(are_in_order(kMoeScheduleTraits));
constexpr const auto& rows(MoeSchedule) { return kMoeScheduleTraits; }
inline constexpr auto kMoeSchedules = values_of<MoeSchedule>();
constexpr bool runs(MoeSchedule s) { return traits(s).nearest == s; }
constexpr bool has_chunks(MoeSchedule s) { return traits(s).has_chunks; }
constexpr bool needs_replicated_tokens(MoeSchedule s) { return traits(s).needs_replicated_tokens; }
// Whether ranks of tp, if there are several, must hold all tokens.
constexpr bool refuses_divided_tokens(MoeSchedule s) {
  return needs_replicated_tokens(s) || traits(s).gathers_tokens;
}

// The largest value of any count: far beyond any machine, and every product of three stays inside
// 64 bits.
inline constexpr int64_t kMaxCount = 1'000'000;
// The same of vpp, etp, tp and cp.
inline constexpr int64_t kMaxDegree = 1024;
// The same of chunks of a mixture layer's rows.
inline constexpr int64_t kMaxMoeChunks = 32;

// Degrees of the axes. The attention mesh tp x cp x dp and the expert mesh etp x ep x edp are two
// ways to cut the same ranks of a stage: edp = tp x cp x dp / (etp x ep).
struct Mesh {
  int64_t pp = 1;
  int64_t ep = 1;
  int64_t dp = 1;   // data-parallel degree of attention
  int64_t vpp = 1;  // chunks of layers a rank holds (virtual stages: pp x vpp)
  int64_t etp = 1;  // ranks that share one expert's matrices
  int64_t tp = 1;
  int64_t cp = 1;  // ranks that share one sequence in attention
  int64_t ranks_per_stage() const { return tp * cp * dp; }
  int64_t ranks_per_sequence() const { return tp * cp; }  // in attention
  int64_t ranks_per_expert_set() const {
    return ep * etp;
  }  // that together hold all experts of a layer
  int64_t num_replicas() const {
    return dp * cp;
  }  // of what is no expert's: RankLayout's Axis::kData
  int64_t num_virtual_stages() const { return pp * vpp; }
  int64_t edp() const { return ranks_per_stage() / (ep * etp); }
  int64_t world() const { return pp * ranks_per_stage(); }
  bool operator==(const Mesh&) const = default;
};

struct Strategy {
  std::string model;    // name, for messages
  std::string cluster;  // name, for messages
  Mesh mesh;
  // Sums to the model's layers; 0 only in the last entry (the head alone); size pp x vpp: virtual
  // stages in the order of the model. Virtual stage v lies on rank v % pp of the pipeline, in a V
  // on rank min(v, 2 pp - 1 - v).
  std::vector<int64_t> layers_per_stage;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  Recompute recompute = Recompute::kNone;
  std::vector<Recompute> recompute_per_stage;  // empty: `recompute` everywhere; else size pp
  Precision precision = Precision::kFp32;
  int64_t sequence = 0;                // tokens
  int64_t global_batch_sequences = 0;  // = dp * micro_batch_sequences * num_micro_batches
  int64_t micro_batch_sequences = 0;   // per rank
  int64_t num_micro_batches = 0;       // per rank and step
  Capacity capacity;                   // of every expert; dropless when left out
  int64_t zero = 0;  // ZeRO stage 0 to 3 (Rajbhandari et al. 2020) over dp x cp, experts over edp
  bool sequence_parallel = false;  // norms and residuals divided over tp (Korthikanti et al. 2022)
  Offload offload = Offload::kNone;
  Placement placement = Placement::kDataInside;
  AllToAll all_to_all = AllToAll::kFlat;
  int64_t all_to_all_chunk_bytes =
      0;  // of a message of kHalo, kHaloSwitch and kHaloDedup at most; 0 = uncut
  Reduction reduction = Reduction::kDirect;  // of gradients
  ReductionStart reduction_start = ReductionStart::kReady;
  ContextExchange context_exchange = ContextExchange::kRing;  // of keys and values, over cp
  MoeSchedule moe_schedule = MoeSchedule::kPlain;
  // Where it has_chunks(): of a micro-batch's tokens on a rank, or groups of the ranks of ep
  int64_t moe_chunks = 1;
  // Slots of every mixture layer that hold copies of experts, over the ranks of an expert group:
  // each has as many (balance/expert_placement.h)
  int64_t redundant_experts = 0;
  // Experts' updated weights reach who holds them alike in one part in so many of their bytes
  // (residual_code.h); 1: all
  int64_t expert_compression = 1;
  int64_t mtp_depth = 0;  // modules of multi-token prediction: model::Model::mtp_depth
  Recompute recompute_of(int64_t stage) const {
    return recompute_per_stage.empty() ? recompute
                                       : recompute_per_stage[static_cast<size_t>(stage)];
  }
  // What the planner predicted (free form: written by plan, shown by report); null: nothing. Shared
  // by copies, never changed.
  std::shared_ptr<const Json> predicted;
  // Compares of `predicted` only whether it is the same object.
  bool operator==(const Strategy&) const = default;
};

// Whether keys and values pass round a ring of more than one rank.
constexpr bool has_ring(const Strategy& s) {
  return s.mesh.cp > 1 && s.context_exchange == ContextExchange::kRing;
}

// First layer of a virtual stage, from layers_per_stage; one past the last stage: the number of
// layers. PIPER_CHECKs that the stage is there.
int64_t first_layer(const Strategy& strategy, int64_t stage);

// Whether the model's first and last layers lie on different ranks: each then has its own copy of a
// table that both use.
constexpr bool ends_apart(const Strategy& s) { return s.mesh.pp > 1 && !is_v(s.schedule); }

// Ranks that divide the tokens of a micro-batch between the blocks: each holds the hidden states of
// an equal part of them.
constexpr int64_t ranks_per_token_set(const Strategy& s) {
  return s.mesh.cp * (s.sequence_parallel ? s.mesh.tp : 1);
}

// The same of those that a mixture layer routes: Parm's S1 divides them for that layer alone.
constexpr int64_t ranks_per_routed_token_set(const Strategy& s) {
  return s.moe_schedule == MoeSchedule::kParmS1 ? s.mesh.ranks_per_sequence()
                                                : ranks_per_token_set(s);
}

// Whether tensor-parallel ranks route the same tokens, each all of them.
constexpr bool repeats_rows(const Strategy& s) {
  return s.mesh.tp > 1 && ranks_per_routed_token_set(s) == s.mesh.cp;
}

// Whether such ranks send each its share of every expert's rows; else each sends all of them.
constexpr bool divides_rows(const Strategy& s) {
  return repeats_rows(s) && traits(s.moe_schedule).divides_rows;
}

// How a text names a field of a strategy. It is given the key of a strategy's file ("mesh.ep"), and
// names it in quotes for one who reads a file, as a flag for one who wrote flags.
using NameOfKey = std::string (*)(std::string_view key);
std::string quoted(std::string_view key);  // "'mesh.ep'"

// Why experts cannot be sent their whole capacity; empty where they can, or are not. A rank has to
// route whole sequences, each of its rows to the one place of its expert.
std::string refusal_of_padding(const Strategy& s, NameOfKey name_of = quoted);
// The same of a model's layers: none takes more than all tokens of a sequence.
std::string refusal_of_padding(const Capacity& capacity, const model::Model& model,
                               NameOfKey name_of = quoted);

// Ranks that share an expert's matrices whose tokens each of them gathers in front of the gate, and
// whose rows each of them sends (Parm's baseline); else a rank's own alone.
constexpr int64_t ranks_per_gated_token_set(const Strategy& s) {
  return traits(s.moe_schedule).gathers_tokens ? s.mesh.etp : 1;
}

// Whether a row is sent to all ranks that share its expert's matrices, in one exchange over ep x
// etp that brings a part of its result back from each (Parm's EP&ESP-AlltoAll); else to one.
constexpr bool fuses_exchange(const Strategy& s) {
  return s.mesh.etp > 1 && traits(s.moe_schedule).fuses_exchange;
}

// Whether the two of a pair take turns: where no rows are exchanged, there is nothing to hide.
constexpr bool pairs_take_turns(const Strategy& s) {
  return pairs(s.schedule) && (s.mesh.ep > 1 || fuses_exchange(s));
}

// Whether ranks that share an expert's matrices receive other rows each, and gather them; else all
// of them receive the same ones, as inside a group of ranks that route the same tokens.
constexpr bool gathers_expert_rows(const Strategy& s) {
  return s.mesh.etp > 1 && !fuses_exchange(s) && ranks_per_gated_token_set(s) == 1 &&
         !(repeats_rows(s) && !divides_rows(s) && s.mesh.tp % s.mesh.etp == 0);
}

// How often every row reaches each part of its expert's matrices.
constexpr int64_t copies_of_rows(const Strategy& s) {
  if (!repeats_rows(s) || divides_rows(s)) return 1;
  return gathers_expert_rows(s) || ranks_per_gated_token_set(s) > 1 ? s.mesh.tp
                                                                    : s.mesh.tp / s.mesh.etp;
}

// Places of a mixture layer's experts, copies among them: what rows are counted and sent by.
constexpr int64_t num_places(const Strategy& s, int64_t num_experts) {
  return num_experts + s.redundant_experts;
}

// Whether tokens travel in place of their copies: results are then weighted where the experts are.
constexpr bool deduplicates(const Strategy& s) {
  return s.all_to_all == AllToAll::kHaloDedup && s.mesh.ep > 1;
}

// The default split: as even as it goes. The remainder goes to the inner stages first, later ones
// before earlier ones, then to the last stage, never to the first: embedding and head weigh on the
// two ends, and under 1F1B the first stage holds the most activations. 7 layers on 4 stages: 1 2 2
// 2; on 5: 1 1 2 2 1. Requires 1 <= pp <= layers.
std::vector<int64_t> even_split(int64_t layers, int64_t pp);
// The fewest layers a stage from which a trainer that divides and rounds up makes so many stages;
// 0 where no number does: 56 layers never become 40 stages. Requires both to be at least 1.
int64_t layers_that_make(int64_t num_stages, int64_t layers);

Json to_json(const Strategy& strategy);
// Required: the degrees pp, ep, dp, the split of the layers, the pipeline schedule, `recompute`,
// the precision, the sequence and the batches. What else is left out is not done (degrees of 1,
// zero, offload, chunks, copies of experts, ...) or is the first of its list (`placement`,
// `all_to_all`, `reduction`, `reduction_start`,
// `context_exchange`, `moe_schedule`). Throws InvalidInput with all
// problems (also contradictions: degrees, products, sums).
Strategy parse_strategy(const Json& json, const std::string& source);
// What a strategy contradicts, itself or the model: the field that is to change, by its key in a
// strategy's file ("mesh.ep", "layers_per_stage[2]"), and a line that says why and what is allowed:
//   'mesh.ep' is 3; allowed: a divisor of 'mesh.dp' 4 (1, 2, 4)
struct Contradiction {
  std::string key, text;
};
// All of them, their texts in the words of the one who asks. Never throws; any field may hold any
// value.
std::vector<Contradiction> contradictions(const Strategy& strategy, const model::Model& model,
                                          NameOfKey name_of = quoted);
// Those that show without a model.
std::vector<Contradiction> contradictions(const Strategy& strategy, NameOfKey name_of = quoted);
std::vector<std::string> texts_of(const std::vector<Contradiction>& contradictions);

// Those of a number from 1 on, ascending. Time grows with its square root.
std::vector<int64_t> divisors(int64_t number);

// As files and flags have it.
template <HasTraits Enum>
constexpr const char* name(Enum value) {
  return traits(value).name;
}
// By name; "norm" is kNone, since norms are always computed again, and "all" is kFull.
std::optional<Recompute> recompute_from(std::string_view name);

}  // namespace piper::strategy
