// How uneven the experts' load may be: not one number but a distribution, from which steps are
// drawn.
//
//   balanced           every expert receives the same (also: uniform)
//   zipf:S             the k-th most popular of a layer's experts receives in proportion to k^-S
//   hot-expert:F       one expert of each layer receives F times its even share
//   hot-rank:F         all experts of one ep index receive F times their even share, in every layer
//   drift:S            popularity wanders: logarithms of the shares have a standard deviation of S and
//                      follow themselves from sample to sample with a correlation of kDriftMemory
//   trace:FILE         what routers of a real run chose (see below); samples lie evenly over its
//                      steps
//
// Which experts are popular differs by layer and sample (zipf, hot-expert), by sample (hot-rank),
// by layer (drift). Samples are functions of (distribution, model, ep, seed, index): the same on
// every machine.
//
// A trace is text, compressed by gzip or not (trace_file.h), one of
//   CSV    a header "iter,layer,e0,e1,..." and a line of counts for each step and layer (lines in
//          any order); with a column "rank" beside the two the counts of all ranks are summed
//   JSON   {"steps": [[[count, ...], ...], ...]}: counts by step, layer, expert
//   JSON   {"data": {NAME: [[count, ...], ...], ...}}: a text is a step, its counts by layer, expert.
//          Names that say "_top1" count one expert a token: they are left out where others are there
// Counts are rows routed to the expert in one step, of all ranks or of one. The j-th mixture layer
// of the model reads layer j of the trace, or j modulo its layers where it has fewer. Where steps
// have different numbers of experts, those nearest to the model's are read. Where that is another
// number still, each row's shares in descending order are read at as many quantiles as the model
// has experts (between two, by interpolation), and which expert has which is drawn by layer.
#pragma once

#include <piper/cost/prices.h>
#include <piper/model/model.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace piper::cost {

inline constexpr double kDriftMemory = 0.9;

enum class LoadKind : uint8_t { kUniform, kZipf, kHotExpert, kHotRank, kDrift, kTrace };

// What a plan is ranked under where no load is named: Mixtral on C4 shows 1.08 to 1.12 between 8
// ranks, a router that a bias balances 1.21 between 64; this load 1.14 and 1.17.
inline constexpr const char* kDefaultLoad = "zipf:0.1";
// The second load that a plan is shown at: routers before they are balanced.
inline constexpr const char* kHeavyLoad = "zipf:0.3";

struct LoadDistribution {
  LoadKind kind = LoadKind::kUniform;
  double parameter = 0;
  std::string text = "balanced";  // as given
  // kTrace: shares by step, layer and expert; each sums to 1.
  std::vector<std::vector<std::vector<double>>> trace;
};

// Reads the words above; trace:FILE reads the file. Throws InvalidInput (naming the word and what
// is allowed; a trace's line or path), IoError.
LoadDistribution parse_load(const std::string& text);

// What parse_load reads after "trace:", from text. `source` names it in errors.
std::vector<std::vector<std::vector<double>>> parse_load_trace(const std::string& text,
                                                               const std::string& source);

// The index-th of num_samples steps. Throws InvalidInput where the distribution does not fit the
// model or ep (hot-expert beyond all rows).
ExpertLoad sample_load(const LoadDistribution& distribution, const model::Model& model, int64_t ep,
                       uint64_t seed, int64_t index, int64_t num_samples);

// "32 experts of the trace stretched over 128"; empty where nothing is.
std::string stretch_of(const LoadDistribution& distribution, const model::Model& model);

// Rows of the busiest of `ep` ranks over the mean, mean over the layers with experts; 1 where the
// load is even. Requires that ep divides the experts.
double imbalance_of(const ExpertLoad& load, int64_t ep);

// The expected rows of the busiest of `ep` ranks over the mean, by each ep of `eps`: what a
// strategy is priced at under this load. It is the mean of imbalance_of() over kExpectedSamples
// steps drawn with seed 0 (a trace: over so many of its steps), so that one load is one number in
// every command. The F of hot-rank:F is at most ep. Throws InvalidInput where the load does not fit
// the model.
inline constexpr int64_t kExpectedSamples = 16;
std::map<int64_t, double> expected_imbalances(const LoadDistribution& load,
                                              const model::Model& model,
                                              const std::vector<int64_t>& eps);

// The same of one ep; 1 for a model without experts.
double expected_imbalance(const LoadDistribution& load, const model::Model& model, int64_t ep);

// Likewise the expected rows of a step's busiest expert over the mean of its layer, of the layer
// where it has most.
double expected_busiest_expert(const LoadDistribution& load, const model::Model& model);

// All experts of one rank of `ep` have so many times their even share, and no more than all rows.
ExpertLoad busy_rank_load(const model::Model& model, int64_t ep, double imbalance);

// Hot ranks are no hotter than all rows allow: of hot-rank:F the F ends at ep.
LoadDistribution load_at(const LoadDistribution& load, int64_t ep);

// Statistics of one quantity over the samples. p95: the smallest value that 95 % of them do not
// exceed.
struct MeanP95Worst {
  double mean = 0, p95 = 0, worst = 0;
};
MeanP95Worst spread_of(std::vector<double> values);

// What it is worth to move experts between the steps of a run.
struct RebalancingGain {
  bool pays = false;             // by the statistic asked for; else experts stay
  MeanP95Worst seconds;          // of a step, what moves before it included
  MeanP95Worst seconds_without;  // of the same steps where experts stay
  // Over all samples and ranks.
  int64_t migrated_experts = 0, migrated_bytes = 0;
  double migration_seconds = 0;
};

// What a step takes under the samples of a load.
struct UnderLoad {
  MeanP95Worst seconds, peak_bytes;
  std::optional<RebalancingGain> rebalancing;  // of LoadSamples::rebalance; `seconds` is the better
};

enum class Statistic : uint8_t { kMean, kP95, kWorst };
const char* name(Statistic statistic);  // "mean", "p95", "worst"
double value(const MeanP95Worst& spread, Statistic statistic);

}  // namespace piper::cost
