// The search over every axis that practitioners turn: PP x VPP x EP x ETP x TP x SP x CP x DP,
// schedule, micro-batch, ZeRO, recomputation, offload, placement, exchange. An estimator
// (cost/estimator.h) says what a strategy takes. What this Piper's executor executes is a part of
// the space (FixedAxes::runnable), and so is the Piper paper's own (FixedAxes::paper_form):
//
//   eq. 7   PP x DP = devices, EP | DP    the paper: DP = EP, no replicas of experts
//   eq. 8   EP | E
//   eq. 9   PP <= L                       the paper too; stages are then as even as L allows
//   eq. 10  EP within the fast domain     the paper alone; here it is priced, not forbidden
//
// Nothing better is lost: a shape (micro-batch, tp, cp, ep, etp, sp) at a depth is passed over only
// when
//
//   m x (work of all stages, nothing recomputed, no exchange) / pp
//     > the time of the worst strategy that is kept
//
// and of the best of its family and of its pipeline schedule; a schedule, split and recomputation
// of it is passed over when m x its busiest stage, states and offload left out, is longer than
// that. By exact costs nothing is known of a shape, and a schedule, split and recomputation is
// passed over by its pipeline without states; then a strategy by its seconds, or by its states and
// the more of what micro-batches in flight keep and what a layer needs, before bytes are walked.
// On many GPUs only screened shapes are searched by exact costs (screen.h): there something better
// may be lost. Tests compare with the plain enumeration. The bounds hold because no strategy of
// that shape and depth does less work, and the busiest stage does at least the mean.
//
// Recomputation is the same on all stages, or chosen stage by stage (stage_recompute.h).
#pragma once

#include <piper/cluster/cluster.h>
#include <piper/cost/all_to_all_config.h>
#include <piper/cost/estimator.h>
#include <piper/cost/load_distribution.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/cost/trainer/trainer_profile.h>
#include <piper/cost/trainer/trainer_rules.h>
#include <piper/model/model.h>
#include <piper/plan/prediction.h>
#include <piper/strategy/strategy.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace piper::plan {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Axes that the user has decided. Empty: the search decides.
struct FixedAxes {
  std::optional<int64_t> pp, vpp, ep, etp, tp, cp, dp, micro_batch_sequences, num_micro_batches,
      zero;
  std::optional<bool> sequence_parallel;
  std::optional<strategy::PipelineSchedule> schedule;
  std::optional<strategy::Recompute> recompute;
  std::optional<strategy::Offload> offload;
  std::optional<strategy::Placement> placement;
  cost::FixedAllToAll exchange;
  std::optional<strategy::Reduction> reduction;  // of what is runnable; else direct
  // Where costs are exact; by a trainer's profile always when they are ready.
  std::optional<strategy::ReductionStart> reduction_start;
  // Where costs are exact; by a trainer's profile always a ring.
  std::optional<strategy::ContextExchange> context_exchange;
  // Where the trainer schedules its mixtures (moe_schedule_axis.h); else plain.
  std::optional<strategy::MoeSchedule> moe_schedule;
  std::optional<int64_t> moe_chunks;
  // Applies to experts' weights wherever they are sent once a step: it changes what is trained.
  int64_t expert_compression = 1;
  strategy::Capacity capacity;  // dropless unless the user lets experts drop
  bool offered = true;          // only what the trainer's profile offers (cost::Offers)
  bool runnable = false;        // only what strategy::not_runnable() has nothing against
  bool paper_form = false;      // only the paper's space, above
};

struct Request {
  const model::Model* model = nullptr;
  const cluster::Cluster* cluster = nullptr;
  const cost::TrainerProfile* trainer = nullptr;
  int64_t num_devices = 0, sequence = 0, global_batch_sequences = 0;
  strategy::Precision precision = strategy::Precision::kBf16;
  FixedAxes fixed;
  double memory_limit_bytes = 0;
  double imbalance = 1;  // rows of the busiest expert rank over the mean
  // The same where it depends on how experts are divided: of `load` what is expected, by ep. In
  // place of `imbalance` for the ep that are in it.
  std::map<int64_t, double> imbalance_by_ep;
  // None: balanced. By samples of it ranked strategies are judged (under_load.h).
  std::optional<cost::LoadSamples> load;
  double imbalance_at(int64_t ep) const {
    const auto found = imbalance_by_ep.find(ep);
    return found == imbalance_by_ep.end() ? imbalance : found->second;
  }
  // Whether the estimator has this Piper's exact costs (cost/estimator.h).
  bool has_exact_costs() const { return cost::has_exact_costs(*cluster, *trainer); }
  // On more, a search by exact costs is of screened shapes (screen.h).
  int64_t most_unscreened_gpus = 8;
  // Whether the search chooses schedules of mixture layers.
  bool schedules_mixtures() const { return has_exact_costs() || trainer->schedules_mixtures; }
  // What is tried of the trainer's axes; everything where FixedAxes::offered is not asked for.
  const cost::Offers& offers() const {
    static const cost::Offers all;
    return fixed.offered ? trainer->offers : all;
  }
  // Whether a rule of the trainer refuses the strategy by what is decided there
  // (cost::Forbidden); never where FixedAxes::offered is not asked for.
  bool forbids(cost::Decided decided, const strategy::Strategy& strategy) const;
  // What forbids() asks; search() makes it, and forbids() itself where it is missing.
  std::shared_ptr<const cost::Forbidden> forbidden;
  std::unique_ptr<cost::Estimator> estimator() const {
    return cost::make_estimator(*model, *cluster, *trainer, precision, sequence, has_exact_costs());
  }
  int64_t num_kept = 64;    // of the fastest
  bool prunes = true;       // false: every strategy is priced (tests)
  bool keeps_kinds = true;  // the best of each family and of each pipeline schedule too
  int64_t num_threads =
      1;  // that search and simulations share; what comes out does not depend on it

  // Called a few hundred times, by the calling thread alone: by search() with shapes done of
  // all, by simulate_ranked() with simulations.
  std::function<void(int64_t done, int64_t total)> progress;
};

// A step under one load, at the rows that its busiest rank is expected to have.
struct LoadedStep {
  double seconds = 0, peak_bytes = 0;
};

struct Candidate {
  strategy::Strategy strategy;
  cost::Estimate estimate;
  double simulated_seconds =
      0;  // of the whole step, simulated (simulate_ranked); 0 = not simulated
  std::optional<cost::UnderLoad> under_load;
  std::optional<LoadedStep> heavy;  // under cost::kHeavyLoad
  double step_seconds() const {
    return simulated_seconds > 0 ? simulated_seconds : estimate.seconds;
  }
  cost::StepSeconds time() const { return time_of(estimate, step_seconds()); }
};

// What a family is: the axes that divide the model, in words.
enum class Family : uint8_t {
  kDataAndExperts,  // no tp, pp, cp: experts divided, the rest replicated or sharded by ZeRO 1, 2
  kFullySharded,    // ZeRO 3
  kTensor,          // tp, no pipeline
  kPipeline,        // a pipeline, no tp
  kPipelineAndTensor,
  kContext,  // any with cp
};
inline constexpr std::array kFamilies{
    Family::kDataAndExperts, Family::kFullySharded,      Family::kTensor,
    Family::kPipeline,       Family::kPipelineAndTensor, Family::kContext};
const char* name(Family family);
Family family_of(const strategy::Strategy& strategy);

struct FamilyBest {
  Family family = Family::kDataAndExperts;
  std::optional<Candidate> best;      // that fits
  std::optional<Candidate> smallest;  // of those that do not fit, when none does
  int64_t num_priced = 0;
};

// How much longer than the best a pipeline schedule's or a family's best may take to be simulated:
// closed forms of what differs in kind err apart, and one that is a little behind may lead.
inline constexpr double kKindSlack = 0.03;

// How much longer than the fastest a strategy may take to be as good, and how much memory counts
// among these (ranking.h).
inline constexpr double kTieSlack = 0.01;
inline constexpr double kTieBytes = 2.0 * (int64_t{1} << 30);

struct Plan {
  std::vector<Candidate>
      ranked;  // that fit, fastest first; ties: less memory, fewer stages, smaller tp
  std::vector<FamilyBest> families;
  std::vector<Candidate> schedules;  // the best of each pipeline schedule within kKindSlack
  std::vector<Candidate> pareto;     // no other is faster and needs less memory; fastest first
  // Some of the num_shapes are screened out (screen.h); some of the others are passed over, since a
  // lower bound tells that nothing of them would be kept.
  int64_t num_priced = 0, num_shapes = 0, num_screened_out = 0, num_passed_over = 0;
  int64_t num_timed = 0;  // of those priced: their time as well as their memory
};

// The strategy that needs the least memory where none of its family fits; null without any.
const Candidate* nearest_of(const Plan& plan);

// How many of the request's threads may be used: one if the cluster notes what it is asked
// (cluster::watched).
int64_t threads_of(const Request& request);

// The request with `forbidden`.
Request with_rules(Request request);

// Throws InvalidInput when the cluster has no figures for the precision, or when the fixed axes
// leave nothing: one line that names those which contradict each other and the nearest values that
// do not.
Plan search(const Request& request);

// Simulates whole steps (simulated_seconds()), those that are too much work left out, until the
// first `count` that are ranked by what is known of each have been simulated, and the best of each
// pipeline schedule and of each family within kKindSlack, and of the front of speed and memory the
// fastest of every kTieBytes within kTieSlack; families and the front of speed and
// memory take that over.
inline constexpr int64_t kMostSimulated = 16;
void simulate_ranked(const Request& request, Plan& plan, int64_t count = kMostSimulated);

// Why the best of a family lost to the best of all, and the smallest change that would revive it.
struct FamilyVerdict {
  std::string family, best, lost, revive;
  bool wins = false;  // the best of all is of this family, or nothing is to be compared
};
std::vector<FamilyVerdict> explain_families(const Request& request, const Plan& plan);

// "pp 8 x 3", "tp 2", "ep 16", "dp 64", ...: an axis each, what is as usual left out.
std::vector<std::string> axes_in_words(const strategy::Strategy& strategy);
// The same in one line.
std::string describe(const strategy::Strategy& strategy);

}  // namespace piper::plan
