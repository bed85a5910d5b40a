// The exchange as an axis of both searches: which algorithm, in which pieces. It depends on where
// the members of an expert group sit and on what they send each other, and on nothing else of a
// strategy, so that it is chosen once for each and multiplies no other axis.
//
// Prices are cost/all_to_all_config.h's: one message a pair as ever (by a measured curve where the
// cluster has one), any other as a multiple of it. What is taken: plan/exchange_pick.h. One message
// a pair stays where the scratch of another would not fit.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/all_to_all_config.h>
#include <piper/cost/trainer/trainer_estimator.h>
#include <piper/model/model.h>
#include <piper/strategy/strategy.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace piper::plan {

// What one exchange of a strategy carries; the largest of its layers. Group size 1: nothing.
// `element_bytes` 0: those of the precision.
struct ExchangeTask {
  cost::Group group;
  cost::ExchangeLoad load;   // without the spread of its tokens, which depends on where members sit
  cost::Routed routed;       // refers to the model
  bool deduplicates = true;  // whether tokens may travel in place of their copies
  cost::ExchangeLoad load_on(const cost::ExchangeSite& site) const;
};
ExchangeTask exchange_task(const model::Model& model, const strategy::Strategy& strategy,
                           double imbalance = 1, int64_t element_bytes = 0);

// Chooses for strategies of one model on one cluster; keeps what it chose. Not thread-safe; model
// and cluster outlive it.
class ExchangeAxis {
 public:
  // `trainer` nullptr: as this Piper runs it. `is_runnable`: only what its executor runs. A trainer
  // that does not choose keeps the flat exchange, or what is fixed.
  ExchangeAxis(const model::Model& model, const cluster::Cluster& cluster,
               const cost::FixedAllToAll& fixed, const cost::TrainerProfile* trainer = nullptr,
               const cost::Rates* rates = nullptr, bool is_runnable = false);
  // Sets all_to_all and all_to_all_chunk_bytes. `imbalance`: of its ep, always the same.
  void choose(strategy::Strategy& strategy, double imbalance = 1);
  // The same for several with an imbalance each; threads share what is new. `of_rows`: copies of
  // tokens travel, not tokens in their place.
  void choose(std::span<strategy::Strategy> strategies, std::span<const double> imbalances,
              int64_t num_threads, bool of_rows = false);
  bool is_fixed() const { return fixed_.algorithm.has_value(); }
  // Whether one that does not fit may be tried with one message a pair instead, which has no
  // scratch.
  bool may_fall_back(const strategy::Strategy& strategy) const;
  strategy::Strategy with_plain_exchange(strategy::Strategy strategy) const;

 private:
  using Key = std::tuple<int64_t, int64_t, double, bool>;
  static Key key_of(const ExchangeTask& task);
  cost::AllToAllConfig pick(const ExchangeTask& task) const;
  const model::Model& model_;
  const cluster::Cluster& cluster_;
  cost::FixedAllToAll fixed_;
  const cost::TrainerProfile* trainer_;
  const cost::Rates* rates_;
  bool is_runnable_;
  std::map<Key, cost::AllToAllConfig> chosen_;
};

// One exchange by every algorithm in its best pieces, the strategy's own in its own.
struct ExchangeOption {
  cost::AllToAllConfig config;
  double seconds = 0, over_flat = 1, scratch_bytes = 0;
  bool chosen = false;
  // The flat one only: the trainer leaves out what crosses twice; times what simulating its order
  // costs; by the cluster's curve.
  bool deduplicated = false, simulated = false, measured = false;
};
struct ExchangeVerdict {
  ExchangeTask task;
  std::vector<ExchangeOption> options;  // cheapest first
  std::string why;                      // one line
};
ExchangeVerdict explain_exchange(const model::Model& model, const cluster::Cluster& cluster,
                                 const strategy::Strategy& strategy,
                                 const cost::TrainerProfile* trainer = nullptr,
                                 const cost::Rates* rates = nullptr, double imbalance = 1);
// "measured curve", "links", "links; rows for one node cross once", "assumed: times the ratio of
// the two simulated".
const char* source_of(const ExchangeOption& option);
Json to_json(const ExchangeVerdict& verdict);

}  // namespace piper::plan
