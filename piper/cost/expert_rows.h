// How many rows go where: a load distribution over experts becomes rows of ranks.
#pragma once

#include <piper/collective/topology.h>
#include <piper/cost/activation.h>
#include <piper/cost/prices.h>

#include <cstdint>
#include <map>
#include <vector>

namespace piper::cost {

// How many of a rank's `tokens` are expected to have an expert on some of `num_members` of the `ep`
// members of its group, when routers favour none.
int64_t expected_tokens(const model::FeedForward& f, int64_t ep, int64_t num_members,
                        int64_t tokens);
// Sets received_tokens: where tokens travel in place of their copies (strategy::deduplicates).
void expect_tokens(const model::Model& model, int32_t layer, int64_t ep, SegmentWork& work);

// From the rows that every expert of each layer with experts got in one step: their shares and,
// with a capacity, the part of all choices that was not dropped. A layer without rows is taken as
// balanced.
ExpertLoad load_of(const model::Model& model, const strategy::Strategy& strategy,
                   const std::map<int32_t, std::vector<int64_t>>& expert_rows);

// Every rank routes its T * k rows, less what a capacity drops, by the same distribution; where the
// capacity is padded, all of it to every expert.
// Thread-safe after construction.
class ExpertRows {
 public:
  // Throws InvalidInput when `load` does not fit the model (layers, experts, shares not summing to
  // 1, parts that are none, placements on another group or with other copies than the strategy's).
  ExpertRows(const model::Model& model, const strategy::Strategy& strategy, const ExpertLoad& load);

  bool balanced() const { return load_.share.empty() && load_.routed.empty(); }
  // Every micro-batch of every rank is known apart.
  bool exact() const { return !load_.routed.empty(); }
  // Where the layer's experts are: as given, or plain.
  const balance::ExpertPlacement& placement(int32_t layer) const;
  // Rows that every rank of an expert group sends to the experts of ep index `to`; of an expert
  // with several copies each has an equal part.
  int64_t rows_to(int32_t layer, int64_t to, int16_t chunk = 0) const;
  // The same of all chunks, of a balanced load too.
  int64_t rows_of_pair(int32_t layer, int64_t to) const {
    return balanced() ? work(layer, 0).rows / strategy_.mesh.ep : rows_to(layer, to);
  }
  // The work of a segment of the layer (-1: of the model's ends) on a rank of this ep index.
  // `chunk`: schedule::Segment::chunk.
  SegmentWork work(int32_t layer, int64_t ep_index, int16_t chunk = 0) const;
  // With exact(): of a member of a stage, in a micro-batch; and what it sends to the experts of
  // ep index `to`.
  SegmentWork work(int32_t layer, int32_t micro_batch, int64_t member, int16_t chunk) const;
  int64_t rows_between(int32_t layer, int32_t micro_batch, int64_t from, int64_t to,
                       int16_t chunk) const;
  // The collective::distinct_tokens of a strategy that deduplicates, as they were routed; without
  // exact(), those to expect when every expert is as likely as any other. `units`: those of the
  // expert group.
  std::vector<int64_t> distinct(int32_t layer, int32_t micro_batch, int64_t member,
                                const collective::Units& units) const;

 private:
  int64_t expected_tokens(int32_t layer, int64_t num_members) const;
  int64_t rows_of_expert(int32_t layer, int64_t expert) const;
  // Rows of the experts of ep index `to`, by index on the rank.
  std::vector<int64_t> rows_of_rank(int32_t layer, int64_t to) const;
  SegmentWork balanced(int32_t layer) const;
  const std::vector<int64_t>& of_rank(const RoutedRows& all, int32_t layer, int32_t micro_batch,
                                      int64_t member) const;
  // By place of an expert: of a chunk, or of all.
  std::vector<int64_t> routed(int32_t layer, int32_t micro_batch, int64_t member,
                              int16_t chunk) const;

  const model::Model& model_;
  const strategy::Strategy& strategy_;
  ExpertLoad load_;
  std::map<int64_t, balance::ExpertPlacement> plain_;  // by number of experts: where none is given
};

}  // namespace piper::cost
