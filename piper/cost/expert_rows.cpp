#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cost/expert_rows.h>
#include <piper/cost/layer_cost.h>
#include <piper/cost/token_spread.h>
#include <piper/strategy/rank_layout.h>
#include <piper/strategy/state_bytes.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace piper::cost {

int64_t expected_tokens(const model::FeedForward& f, int64_t ep, int64_t num_members,
                        int64_t tokens) {
  const auto held = static_cast<double>(f.num_experts / ep * num_members);
  return std::llround(static_cast<double>(tokens) * chance_on_unit(f, held));
}

void expect_tokens(const model::Model& model, int32_t layer, int64_t ep, SegmentWork& work) {
  if (work.local_experts > 0 && ep > 1)
    work.received_tokens =
        ep * expected_tokens(model.layers[static_cast<size_t>(layer)].feed_forward, ep, 1,
                             work.routed_tokens());
}

ExpertRows::ExpertRows(const model::Model& model, const strategy::Strategy& strategy,
                       const ExpertLoad& load)
    : model_(model), strategy_(strategy), load_(load) {
  std::vector<std::string> problems;
  for (const auto& [key, rows] : load.routed)
    if (std::get<0>(key) < 0 || std::get<0>(key) >= std::ssize(model.layers) ||
        std::ssize(rows) !=
            strategy::num_places(
                strategy,
                model.layers[static_cast<size_t>(std::get<0>(key))].feed_forward.num_experts) *
                strategy::num_moe_chunks(strategy))
      throw InvalidInput(
          fmt::format("expert load: rows of layer {} for {} experts; allowed: those of {}",
                      std::get<0>(key), rows.size(), model.name));
  if (!load.share.empty() && load.share.size() != model.layers.size())
    throw InvalidInput(fmt::format("expert load: {} layers; allowed: the {} of {}",
                                   load.share.size(), model.layers.size(), model.name));
  if (!load.kept.empty() && load.kept.size() != model.layers.size())
    throw InvalidInput(fmt::format("expert load: {} kept parts; allowed: the {} layers of {}",
                                   load.kept.size(), model.layers.size(), model.name));
  for (const double kept : load.kept)
    if (!(kept >= 0 && kept <= 1))
      problems.push_back(fmt::format("expert load: a kept part is {}; allowed: 0 to 1", kept));
  for (size_t layer = 0; layer < load.share.size(); ++layer) {
    const std::vector<double>& share = load.share[layer];
    if (share.empty()) continue;
    const auto experts = static_cast<size_t>(model.layers[layer].feed_forward.num_experts);
    const double sum = std::accumulate(share.begin(), share.end(), 0.0);
    if (share.size() != experts)
      problems.push_back(fmt::format("expert load: layer {} has {} shares; allowed: {}", layer,
                                     share.size(), experts));
    else if (!(std::abs(sum - 1) < 1e-6))
      problems.push_back(
          fmt::format("expert load: the shares of layer {} sum to {}; allowed: 1", layer, sum));
  }
  for (const auto& [layer, placement] : load.placements)
    if (layer < 0 || layer >= std::ssize(model.layers) ||
        placement.num_places() != placement.num_experts() + strategy.redundant_experts ||
        placement.num_ranks() != strategy.mesh.ep ||
        placement.num_experts() !=
            model.layers[static_cast<size_t>(layer)].feed_forward.num_experts)
      problems.push_back(fmt::format(
          "expert load: a placement of layer {} has {} experts and {} copies on {} ranks; allowed: "
          "the layer's experts and {} copies on the {} ranks of an expert group",
          layer, placement.num_experts(), placement.num_places() - placement.num_experts(),
          placement.num_ranks(), strategy.redundant_experts, strategy.mesh.ep));
  if (!problems.empty()) throw InvalidInput(problems);
  for (const model::Layer& layer : model.layers)
    if (const int64_t experts = layer.feed_forward.num_experts;
        layer.feed_forward.is_moe() && !plain_.contains(experts))
      plain_.emplace(experts, balance::ExpertPlacement::plain(experts, strategy.mesh.ep,
                                                              strategy.redundant_experts));
}

int64_t ExpertRows::rows_of_expert(int32_t layer, int64_t expert) const {
  const model::FeedForward& ff = model_.layers[static_cast<size_t>(layer)].feed_forward;
  const int64_t sharers = strategy::ranks_per_routed_token_set(strategy_) *
                          (strategy::divides_rows(strategy_) ? strategy_.mesh.tp : 1);
  // A capacity drops padding.
  const int64_t trained = model_.trained_positions(layer, strategy_.sequence);
  const int64_t positions = strategy_.capacity.is_limited() ? trained : strategy_.sequence;
  const int64_t gated = strategy::ranks_per_gated_token_set(strategy_);
  double rows =
      static_cast<double>(gated * strategy_.micro_batch_sequences * positions / sharers * ff.top_k);
  if (!load_.kept.empty()) rows *= load_.kept[static_cast<size_t>(layer)];
  const std::vector<double>& share = load_.share[static_cast<size_t>(layer)];
  const int64_t wanted =
      std::llround(rows * (share.empty() ? 1.0 / static_cast<double>(ff.num_experts)
                                         : share[static_cast<size_t>(expert)]));
  if (!strategy_.capacity.is_limited()) return wanted;
  const int64_t capacity =
      strategy::expert_capacity(strategy_.capacity.factor, trained, ff.top_k, ff.num_experts);
  const int64_t most = gated * strategy_.micro_batch_sequences * capacity / sharers;
  return strategy_.capacity.pads ? most : std::min(wanted, most);
}

const balance::ExpertPlacement& ExpertRows::placement(int32_t layer) const {
  if (const auto found = load_.placements.find(layer); found != load_.placements.end())
    return found->second;
  return plain_.at(model_.layers[static_cast<size_t>(layer)].feed_forward.num_experts);
}

std::vector<int64_t> ExpertRows::rows_of_rank(int32_t layer, int64_t to) const {
  const balance::ExpertPlacement& placed = placement(layer);
  std::vector<int64_t> rows;
  for (const int32_t expert : placed.held(to)) {
    const std::span<const int32_t> copies = placed.copies_of(expert);
    const int64_t all = rows_of_expert(layer, expert), num = std::ssize(copies);
    // What does not divide goes to the first of them.
    const auto on_rank = placed.num_places() / placed.num_ranks();
    const auto at = std::ranges::find_if(
        copies, [&](int32_t place) { return num == 1 || place / on_rank == to; });
    rows.push_back(all / num + (at - copies.begin() < all % num ? 1 : 0));
  }
  return rows;
}

int64_t ExpertRows::rows_to(int32_t layer, int64_t to, int16_t chunk) const {
  SegmentWork work = balanced(layer);
  const std::vector<int64_t> rows = rows_of_rank(layer, to);
  work.rows = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  return work_of_chunk(work, chunk, strategy::num_moe_chunks(strategy_)).rows;
}

SegmentWork ExpertRows::balanced(int32_t layer) const {
  SegmentWork work = balanced_work(
      model_, layer, strategy_.micro_batch_sequences, strategy_.sequence, strategy_.mesh.ep,
      element_bytes(strategy_.precision), strategy_.capacity, work_division(strategy_));
  if (strategy::deduplicates(strategy_)) expect_tokens(model_, layer, strategy_.mesh.ep, work);
  return work;
}

int64_t ExpertRows::expected_tokens(int32_t layer, int64_t num_members) const {
  return cost::expected_tokens(model_.layers[static_cast<size_t>(layer)].feed_forward,
                               strategy_.mesh.ep, num_members,
                               strategy_.micro_batch_sequences * strategy_.sequence /
                                   strategy::ranks_per_routed_token_set(strategy_));
}

std::vector<int64_t> ExpertRows::distinct(int32_t layer, int32_t micro_batch, int64_t member,
                                          const collective::Units& units) const {
  if (exact()) return of_rank(load_.distinct, layer, micro_batch, member);
  std::vector<int64_t> tokens(static_cast<size_t>(units.num_members()), expected_tokens(layer, 1));
  for (int64_t unit = 0; unit < units.num_units(); ++unit)
    tokens.push_back(expected_tokens(layer, units.size(unit)));
  return tokens;
}

const std::vector<int64_t>& ExpertRows::of_rank(const RoutedRows& all, int32_t layer,
                                                int32_t micro_batch, int64_t member) const {
  const auto found = all.find({layer, micro_batch, member});
  if (found == all.end())
    throw InvalidInput(
        fmt::format("expert load: nothing of layer {}, micro-batch {}, rank {} of a stage", layer,
                    micro_batch, member));
  return found->second;
}

std::vector<int64_t> ExpertRows::routed(int32_t layer, int32_t micro_batch, int64_t member,
                                        int16_t chunk) const {
  const std::vector<int64_t>& all = of_rank(load_.routed, layer, micro_batch, member);
  const auto places = static_cast<size_t>(strategy::num_places(
      strategy_, model_.layers[static_cast<size_t>(layer)].feed_forward.num_experts));
  std::vector<int64_t> rows(places);
  for (size_t i = 0; i < all.size(); ++i)
    if (chunk == 0 || i / places + 1 == static_cast<size_t>(chunk)) rows[i % places] += all[i];
  return rows;
}

int64_t ExpertRows::rows_between(int32_t layer, int32_t micro_batch, int64_t from, int64_t to,
                                 int16_t chunk) const {
  const std::vector<int64_t> rows = routed(layer, micro_batch, from, chunk);
  const strategy::ExpertRange range = strategy::experts_of(strategy_.mesh, std::ssize(rows), to);
  return std::accumulate(rows.begin() + range.first, rows.begin() + range.first + range.count,
                         int64_t{0});
}

namespace {

void set_largest(const std::vector<int64_t>& rows, SegmentWork& work) {
  const auto largest = std::ranges::max_element(rows);
  work.largest_expert_rows = *largest;
  work.other_experts = {};
  for (auto of = rows.begin(); of != rows.end(); ++of) {
    if (of == largest || *of == 0) continue;
    const auto halvings =
        static_cast<size_t>(std::bit_width(static_cast<uint64_t>(*largest / *of)) - 1);
    ExpertsOfSize& alike = work.other_experts[std::min(halvings, work.other_experts.size() - 1)];
    ++alike.num_experts;
    alike.rows += *of;
  }
}

}  // namespace

SegmentWork ExpertRows::work(int32_t layer, int32_t micro_batch, int64_t member,
                             int16_t chunk) const {
  SegmentWork work = work_of_chunk(balanced(layer), chunk, strategy::num_moe_chunks(strategy_));
  if (work.local_experts == 0 || micro_batch < 0) return work;
  const std::vector<int64_t> sent = routed(layer, micro_batch, member, chunk);
  work.rows = std::accumulate(sent.begin(), sent.end(), int64_t{0});
  const strategy::RankLayout layout(strategy_);
  const auto each_of = [](const strategy::Members& group, auto visit) {
    for (int64_t i = 0; i < group.size; ++i) visit(group.first + i * group.stride);
  };
  work.others_rows = -work.rows;
  each_of(
      layout.members(work.by.rows > 1 ? strategy::Axis::kTensor : strategy::Axis::kRank, member),
      [&](int64_t sharer) {
        for (const int64_t rows : routed(layer, micro_batch, sharer, chunk))
          work.others_rows += rows;
      });
  const strategy::Axis exchanged =
      work.by.fuses_exchange ? strategy::Axis::kTensorExpert : strategy::Axis::kExpert;
  const strategy::Members peers = layout.members(exchanged, member);
  const int64_t ep_index = (member - peers.first) / peers.stride / work.receivers();
  // By expert, of this rank and of all whose rows it gathers.
  std::vector<int64_t> received(static_cast<size_t>(work.local_experts), 0);
  work.received_rows = 0;
  const strategy::Axis gathered =
      work.by.gathers_rows ? strategy::Axis::kExpertTensor : strategy::Axis::kRank;
  each_of(layout.members(gathered, member), [&](int64_t sharer) {
    each_of(layout.members(exchanged, sharer), [&](int64_t peer) {
      const std::vector<int64_t> rows = routed(layer, micro_batch, peer, chunk);
      for (int64_t e = 0; e < work.local_experts; ++e) {
        const int64_t more = rows[static_cast<size_t>(ep_index * work.local_experts + e)];
        received[static_cast<size_t>(e)] += more;
        if (sharer == member) work.received_rows += more;
      }
    });
  });
  work.gathered_rows = std::accumulate(received.begin(), received.end(), int64_t{0});
  if (work.deduplicated()) {
    work.received_tokens = 0;
    each_of(peers, [&](int64_t peer) {
      work.received_tokens +=
          of_rank(load_.distinct, layer, micro_batch, peer)[static_cast<size_t>(ep_index)];
    });
  }
  set_largest(received, work);
  return work;
}

SegmentWork ExpertRows::work(int32_t layer, int64_t ep_index, int16_t chunk) const {
  SegmentWork work = balanced(layer);
  if (balanced() || work.local_experts == 0)
    return work_of_chunk(work, chunk, strategy::num_moe_chunks(strategy_));
  if (strategy_.capacity.is_limited()) {
    work.rows = 0;
    for (int64_t to = 0; to < strategy_.mesh.ep; ++to) work.rows += rows_to(layer, to);
    work.others_rows = work.rows * (work.by.rows - 1);
  }
  work.received_rows = strategy_.mesh.ep * work.receivers() * rows_to(layer, ep_index);
  const int64_t gathered = work.by.gathers_rows ? work.by.experts : work.receivers();
  work.gathered_rows = strategy_.mesh.ep * gathered * rows_to(layer, ep_index);
  std::vector<int64_t> received;
  for (const int64_t rows : rows_of_rank(layer, ep_index))
    received.push_back(strategy_.mesh.ep * gathered * rows);
  set_largest(received, work);
  return work_of_chunk(work, chunk, strategy::num_moe_chunks(strategy_));
}

ExpertLoad load_of(const model::Model& model, const strategy::Strategy& strategy,
                   const std::map<int32_t, std::vector<int64_t>>& expert_rows) {
  ExpertLoad load;
  load.share.resize(model.layers.size());
  if (strategy.capacity.is_limited()) load.kept.assign(model.layers.size(), 1.0);
  for (const auto& [layer, rows] : expert_rows) {
    const auto total = static_cast<double>(std::accumulate(rows.begin(), rows.end(), int64_t{0}));
    if (total <= 0) continue;
    for (const int64_t count : rows)
      load.share[static_cast<size_t>(layer)].push_back(static_cast<double>(count) / total);
    const int64_t top_k = model.layers[static_cast<size_t>(layer)].feed_forward.top_k;
    if (strategy.capacity.is_limited())
      load.kept[static_cast<size_t>(layer)] =
          total / static_cast<double>(strategy.global_batch_sequences *
                                      model.trained_positions(layer, strategy.sequence) * top_k);
  }
  return load;
}

}  // namespace piper::cost
