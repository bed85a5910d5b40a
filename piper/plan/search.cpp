#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/plan/contradictions.h>
#include <piper/plan/exchange_axis.h>
#include <piper/plan/frontier.h>
#include <piper/plan/moe_schedule_axis.h>
#include <piper/plan/reduction_axis.h>
#include <piper/plan/screen.h>
#include <piper/plan/search.h>
#include <piper/plan/shapes.h>
#include <piper/plan/split.h>
#include <piper/plan/stage_recompute.h>
#include <piper/plan/threads.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace piper::plan {
namespace {

using cost::Decided;
using strategy::Offload;
using strategy::PipelineSchedule;
using strategy::Placement;
using strategy::Recompute;
using strategy::Strategy;

// Shapes of a round, after so many: a part of those, so that a bar of yesterday costs little, but
// enough for many threads to share. Nothing of the machine is in it.
int64_t round_size(int64_t num_visited) {
  constexpr int64_t kLeast = 8, kMost = 128, kPart = 16;
  return std::clamp(num_visited / kPart, kLeast, kMost);
}

// What is trained chooses it by where the ranks of a mesh sit.
strategy::Reduction reduction_of(const Request& r, const Strategy& s) {
  if (!r.fixed.runnable) return s.reduction;
  return r.fixed.reduction ? *r.fixed.reduction : cheaper_reduction(*r.model, *r.cluster, s);
}

Strategy base_of(const Request& r, const Shape& shape) {
  Strategy strategy = with_shape(r, shape);
  strategy.model = r.model->name;
  strategy.cluster = r.cluster->name;
  strategy.precision = r.precision;
  strategy.sequence = r.sequence;
  strategy.sequence_parallel = shape.sequence_parallel;
  strategy.capacity = r.fixed.capacity;
  strategy.reduction = reduction_of(r, strategy);
  strategy.reduction_start = r.fixed.reduction_start.value_or(strategy::ReductionStart::kReady);
  return strategy;
}

// No strategy of that mesh and one of `schedules` which takes so long would be kept.
bool is_beaten(const Request& r, const Frontier& kept, const Strategy& s, double least,
               std::span<const PipelineSchedule> schedules) {
  if (!r.prunes || least <= kept.bar()) return false;
  if (!r.keeps_kinds) return true;
  if (std::ranges::any_of(schedules, [&](PipelineSchedule schedule) {
        return least <= kept.seconds(schedule) && tries_schedule(r, s, schedule);
      }))
    return false;
  const bool can_shard = wanted<int64_t>(r.fixed.zero, 3) && s.mesh.cp == 1;
  return least > kept.seconds(family_of(s)) &&
         (!can_shard || least > kept.seconds(Family::kFullySharded));
}

// A shape with its exchange and its mixture layers' schedule. Where pairs of micro-batches hide
// exchanges, those that carry least are best; elsewhere others may be, that hide behind
// chunks of experts.
struct Visited {
  Strategy in_pairs;
  std::optional<Strategy> alone;  // if another
};

// One shape: splits, schedules, and what only memory and reductions feel.
class Visit {
 public:
  // `kept`: on top of what was known when the shape's round began.
  Visit(const Request& request, const ExchangeAxis& exchange, cost::Estimator& estimator,
        Frontier& kept)
      : r_(request), exchange_(exchange), estimator_(estimator), kept_(kept) {}

  void run(const Visited& visited) {
    for (const PipelineSchedule schedule : strategy::kPipelineSchedules) {
      Strategy s = visited.in_pairs;
      if (!strategy::pairs(schedule) && visited.alone) s = *visited.alone;
      if (!tries_schedule(r_, s, schedule)) continue;
      s.schedule = schedule;
      for (int64_t vpp = 1; vpp <= kMostChunks; ++vpp) {
        if (!tries_chunks(r_, s, vpp)) continue;
        s.mesh.vpp = vpp;
        visit_splits(s);
        visit_stage_recompute(s);
      }
      s.mesh.vpp = 1;
    }
  }

 private:
  bool is_beaten(const Strategy& s, double least) const {
    return plan::is_beaten(r_, kept_, s, least, std::span(&s.schedule, 1));
  }

  void visit_splits(Strategy& s) {
    const int64_t stages = s.mesh.num_virtual_stages();
    for (const Recompute recompute : strategy::kRecomputes) {
      if (!wanted(r_.fixed.recompute, recompute) || !r_.offers().has(recompute)) continue;
      s.recompute = recompute;
      s.layers_per_stage = strategy::even_split(r_.model->num_layers(), stages);
      if (!r_.forbids(Decided::kLayers, s)) visit_states(s);
      if (stages == 1 || r_.fixed.paper_form) continue;
      const std::vector<int64_t>& balanced = balanced_of(s, stages);
      if (balanced == s.layers_per_stage) continue;
      s.layers_per_stage = balanced;
      if (!r_.forbids(Decided::kLayers, s)) visit_states(s);
    }
  }

  // Where not every stage fits without, or with the same recomputation.
  void visit_stage_recompute(Strategy& s) {
    if (r_.fixed.recompute || r_.fixed.runnable || !r_.offers().recompute_by_stage ||
        s.mesh.pp == 1)
      return;
    s.recompute = Recompute::kNone;
    const std::vector<int64_t> even =
        strategy::even_split(r_.model->num_layers(), s.mesh.num_virtual_stages());
    for (const std::vector<int64_t>& split : {even, balanced_of(s, std::ssize(even))}) {
      s.layers_per_stage = split;
      s.recompute = Recompute::kNone;
      if (is_beaten(s, estimator_.bound_of_schedule(s, r_.imbalance_at(s.mesh.ep)))) continue;
      // Sums of layers are kept from one state to the next, not from one recomputation to the next.
      std::vector<LoadsByRecompute> loads;
      for (size_t r = 0; r < strategy::kRecomputes.size(); ++r) {
        s.recompute = strategy::kRecomputes[r];
        size_t state = 0;
        for_each_state(s, [&] {
          if (loads.size() <= state) loads.emplace_back();
          loads[state++][r] = estimator_.stage_loads(s, r_.imbalance_at(s.mesh.ep));
        });
      }
      size_t state = 0;
      for_each_state(s, [&] {
        const LoadsByRecompute& here = loads[state++];
        // What is best for the stages as they are is not always best for those to come: tighter
        // limits begin elsewhere.
        for (const double part : {1.0, 0.92, 0.85}) {
          const double limit = part * r_.memory_limit_bytes;
          const auto choice = choose_by_stage(here, limit);
          const auto m = static_cast<double>(s.num_micro_batches);
          if (!choice || is_beaten(s, m * choice->mean)) return;
          if (choice->is_uniform()) continue;
          if (const auto chosen =
                  with_stage_recompute(estimator_, s, *choice, limit, r_.imbalance_at(s.mesh.ep)))
            price(*chosen);
        }
      });
    }
  }

  // Kept for a shape: schedules share it.
  const std::vector<int64_t>& balanced_of(const Strategy& s, int64_t stages) {
    const auto [found, is_new] = balanced_.try_emplace(
        {s.recompute, stages, s.all_to_all, strategy::splits_backward(s.schedule)});
    if (is_new) {
      const cost::PassSeconds pass = estimator_.pass_seconds(s, r_.imbalance_at(s.mesh.ep));
      found->second = balanced_split(pass.layers, pass.embedding, pass.head, stages);
    }
    return found->second;
  }

  void visit_states(Strategy& s) {
    if (is_beaten(s, estimator_.bound_of_split(s, r_.imbalance_at(s.mesh.ep)))) return;
    for_each_state(s, [&] { price(s); });
  }

  // What only memory, reductions and messages feel.
  void for_each_state(Strategy& s, auto visit) {
    const strategy::Reduction data_inside = s.reduction;
    for (s.zero = 0; s.zero <= 3; ++s.zero) {
      if (!tries_zero(r_, s, s.zero)) continue;
      s.expert_compression = compression_of(r_, s);
      no_more_offload_.clear();
      for (const Offload offload : strategy::kOffloads) {
        if (!tries_offload(r_, s, offload)) continue;
        s.offload = offload;
        for (const Placement placement : strategy::kPlacements) {
          if (!tries_placement(r_, s, placement)) continue;
          // Copies to the host only add time, and each such strategy costs a walk over all its
          // tasks: none is tried beside one with less on the host that fits, or takes too long.
          if (r_.has_exact_costs() && no_more_offload_.contains(placement)) continue;
          s.placement = placement;
          s.reduction = placement == Placement::kDataInside ? data_inside : reduction_of(r_, s);
          visit();
        }
      }
    }
    s.zero = 0;
    s.expert_compression = 1;
    s.offload = Offload::kNone;
    s.placement = Placement::kDataInside;
    s.reduction = data_inside;
  }

  void price(const Strategy& s) {
    if (!r_.offers().has_offload_of(s) || r_.forbids(Decided::kLast, s)) return;
    if (!s.recompute_per_stage.empty() && r_.forbids(Decided::kLayers, s)) return;
    const Family family = family_of(s);
    kept_.count_priced(family);
    if (r_.prunes && is_pruned(s, family)) return;
    // Three of four do not fit: of those nobody asks how long they take, unless one lacks least of
    // its family.
    const cost::Estimate bytes =
        estimator_.bytes(s, r_.imbalance_at(s.mesh.ep), most_bytes(family));
    if (bytes.peak_bytes > r_.memory_limit_bytes) {
      if (may_fit_plain(s, bytes)) return price(exchange_.with_plain_exchange(s));
      if (kept_.lacks_least(family, bytes.peak_bytes)) kept_.add_unfit(s, estimate(s, family));
      return;
    }
    no_more_offload_.insert(s.placement);
    cost::Estimate e = estimate(s, family);
    // On the front of speed and memory stands nothing coarse.
    if (e.is_coarse)
      if (const double front = kept_.front_seconds(e.peak_bytes); e.at_least < front)
        e = estimator_.estimate(s, r_.imbalance_at(s.mesh.ep), front);
    if (e.is_coarse || !tries_starts(s, e)) return kept_.add(s, e);
    Strategy best = s;
    for (const strategy::ReductionStart start : strategy::kReductionStarts) {
      Strategy other = s;
      other.reduction_start = start;
      if (start == s.reduction_start) continue;
      const cost::Estimate later = estimator_.estimate(other, r_.imbalance_at(s.mesh.ep));
      if (later.seconds >= e.seconds * (1 - kReductionTie)) continue;
      best = other;
      e = later;
    }
    kept_.add(best, e);
  }

  // A strategy that needs more neither fits nor lacks least of its family.
  double most_bytes(Family family) const {
    if (!r_.prunes) return kInfinity;
    return kept_.seconds(family) < kInfinity
               ? r_.memory_limit_bytes
               : std::max(r_.memory_limit_bytes, kept_.smallest_bytes(family));
  }

  // Whether a lower bound of its bytes or of its time tells that it would not be kept.
  bool is_pruned(const Strategy& s, Family family) {
    const double imbalance = r_.imbalance_at(s.mesh.ep);
    const double bytes = estimator_.least_bytes(s, imbalance);
    if (bytes > r_.memory_limit_bytes) return !kept_.lacks_least(family, bytes);
    const double seconds = estimator_.least_seconds(s, imbalance);
    if (!is_beaten(s, seconds) || kept_.front_seconds(bytes) > seconds) return false;
    no_more_offload_.insert(s.placement);
    return true;
  }

  // When sums start changes no bytes. What the busiest stage waits for them is about what another
  // start may save; that of another stage, or of its messages, is not looked at.
  bool tries_starts(const Strategy& s, const cost::Estimate& e) const {
    return r_.has_exact_costs() && !r_.fixed.reduction_start && s.zero < 2 &&
           e.time.reductions > kReductionTie * e.seconds &&
           e.seconds - e.time.reductions <= std::max(kept_.bar(), kept_.seconds(family_of(s)));
  }

  cost::Estimate estimate(const Strategy& s, Family family) {
    kept_.count_timed();
    const double give_up_above_seconds =
        r_.prunes ? std::max({kept_.bar(), kept_.seconds(family), kept_.seconds(s.schedule)})
                  : kInfinity;
    return estimator_.estimate(s, r_.imbalance_at(s.mesh.ep), give_up_above_seconds,
                               r_.memory_limit_bytes);
  }

  // Without its scratch the same stage needs so much still.
  bool may_fit_plain(const Strategy& s, const cost::Estimate& e) const {
    if (!exchange_.may_fall_back(s)) return false;
    const double without = e.peak_bytes - e.fullest.exchange;
    const Family family = family_of(s);
    return without <= r_.memory_limit_bytes ||
           (kept_.seconds(family) == kInfinity && without < kept_.smallest_bytes(family));
  }

  const Request& r_;
  const ExchangeAxis& exchange_;
  cost::Estimator& estimator_;
  Frontier& kept_;
  // In for_each_state(), the placements for which a strategy of this ZeRO stage fits or takes too
  // long: more offload is not tried with them.
  std::set<Placement> no_more_offload_;
  std::map<std::tuple<Recompute, int64_t, strategy::AllToAll, bool>, std::vector<int64_t>>
      balanced_;
};

// Shapes are visited in rounds, the most promising first: what they leave is the bar for the
// others. Every shape of a round sees what was kept when the round began and what it has found
// itself, and what all found is merged in their order, so that the answer does not depend on how
// many threads share a round.
class Search {
 public:
  explicit Search(const Request& request)
      : r_(request),
        num_threads_(threads_of(request)),
        rates_(rates_of(request)),
        exchange_(*request.model, *request.cluster, request.fixed.exchange,
                  rates_ ? request.trainer : nullptr, rates_ ? &*rates_ : nullptr,
                  request.fixed.runnable),
        estimators_(static_cast<size_t>(num_threads_)),
        kept_(request.num_kept) {}

  Plan run() {
    shapes_ = shapes_of(r_);
    refuse_contradictions(r_, shapes_);
    bound_shapes();
    std::ranges::sort(bounded_, {}, [](const Bounded& b) {
      return std::tuple(b.least, b.likely_seconds, b.index);
    });
    if (screens(r_)) screen_shapes();
    int64_t done = 0;
    while (done < std::ssize(bounded_)) {
      done = gather_round(done);
      visit_round(done);
    }
    if ((r_.fixed.moe_schedule || r_.fixed.moe_chunks) && r_.schedules_mixtures() &&
        num_with_moe_schedule_ == 0)
      throw InvalidInput(fmt::format(
          "--moe-schedule {} --moe-chunks {}: no mesh of {} devices allows it; allowed on every "
          "mesh: plain, and chunked or fastermoe where experts are divided (--ep from 2)",
          r_.fixed.moe_schedule ? strategy::name(*r_.fixed.moe_schedule) : "(open)",
          r_.fixed.moe_chunks ? std::to_string(*r_.fixed.moe_chunks) : "(open)", r_.num_devices));
    Plan plan = std::move(kept_).plan();
    plan.num_shapes = std::ssize(shapes_);
    plan.num_screened_out = plan.num_shapes - std::ssize(bounded_);
    plan.num_passed_over = num_passed_over_;
    return plan;
  }

 private:
  // None where exchanges are priced as this Piper runs them.
  static std::optional<cost::Rates> rates_of(const Request& r) {
    if (r.has_exact_costs()) return std::nullopt;
    return cost::Rates(*r.cluster, r.precision);
  }

  struct Bounded {
    double least, likely_seconds;
    size_t index;
  };

  cost::Estimator& estimator(int64_t thread) {
    std::unique_ptr<cost::Estimator>& own = estimators_[static_cast<size_t>(thread)];
    if (!own) own = r_.estimator();
    return *own;
  }

  void bound_shapes() {
    for (size_t i = 0; i < shapes_.size(); ++i) bounded_.push_back({0, 0, i});
    if (!r_.prunes) return;
    // Neighbours have prices in common.
    constexpr size_t kAtOnce = 512;
    const size_t num = (shapes_.size() + kAtOnce - 1) / kAtOnce;
    share_items(num_threads_, static_cast<int64_t>(num), [&](int64_t thread, int64_t item) {
      const size_t first = static_cast<size_t>(item) * kAtOnce;
      for (size_t i = first; i < std::min(first + kAtOnce, shapes_.size()); ++i) {
        const Strategy s = base_of(r_, shapes_[i]);
        const double imbalance = r_.imbalance_at(shapes_[i].ep);
        bounded_[i].least = estimator(thread).bound(s, imbalance);
        bounded_[i].likely_seconds = estimator(thread).likely_seconds(s, imbalance);
      }
    });
  }

  // Leaves the best, and their order.
  void screen_shapes() {
    std::vector<Strategy> strategies;
    std::vector<double> imbalances;
    for (const Bounded& b : bounded_) {
      strategies.push_back(base_of(r_, shapes_[b.index]));
      imbalances.push_back(r_.imbalance_at(shapes_[b.index].ep));
    }
    exchange_.choose(strategies, imbalances, num_threads_);
    const bool is_fixed = r_.schedules_mixtures() && (r_.fixed.moe_schedule || r_.fixed.moe_chunks);
    std::vector<std::vector<ShapeScore>> found(strategies.size());
    constexpr int64_t kAtOnce = 32;
    share_items(
        num_threads_, (std::ssize(found) + kAtOnce - 1) / kAtOnce,
        [&](int64_t thread, int64_t item) {
          const auto first = static_cast<size_t>(item * kAtOnce);
          for (size_t i = first; i < std::min(first + kAtOnce, found.size()); ++i)
            if (Strategy& s = strategies[i];
                !is_fixed || choose_moe_schedule(estimator(thread), r_.fixed, s, imbalances[i]))
              found[i] = scores_of(r_, estimator(thread), i, s);
        },
        [&](int64_t done) { show(std::min(done * kAtOnce, std::ssize(found))); });
    std::vector<ShapeScore> scores;
    for (const std::vector<ShapeScore>& of : found)
      scores.insert(scores.end(), of.begin(), of.end());
    std::vector<Bounded> left;
    for (const size_t i : screened(std::move(scores))) left.push_back(bounded_[i]);
    bounded_ = std::move(left);
    is_screened_ = true;
    next_shown_ = 0;
  }

  // From the `done`-th shape on, those that are not beaten; returns how many have been looked at
  // then.
  int64_t gather_round(int64_t done) {
    round_.clear();
    const int64_t size = round_size(num_visited_);
    for (; done < std::ssize(bounded_) && std::ssize(round_) < size; ++done) {
      const Bounded& b = bounded_[static_cast<size_t>(done)];
      Strategy s = base_of(r_, shapes_[b.index]);
      if (is_beaten(r_, kept_, s, b.least, strategy::kPipelineSchedules))
        ++num_passed_over_;
      else
        round_.push_back(std::move(s));
    }
    num_visited_ += std::ssize(round_);
    return done;
  }

  void visit_round(int64_t looked_at) {
    const std::vector<Visited> visited = with_exchanges();
    std::vector<std::optional<Frontier>> found(visited.size());
    const int64_t before = looked_at - std::ssize(round_);
    share_items(
        num_threads_, std::ssize(visited),
        [&](int64_t thread, int64_t item) {
          const auto i = static_cast<size_t>(item);
          Visit(r_, exchange_, estimator(thread), found[i].emplace(&kept_)).run(visited[i]);
        },
        [&](int64_t done) { show(before + done); });
    for (std::optional<Frontier>& one : found) kept_.merge(std::move(*one));
  }

  // The round's shapes with exchange and schedule of mixture layers, less those that do not allow
  // what is fixed.
  std::vector<Visited> with_exchanges() {
    std::vector<double> imbalances;
    for (const Strategy& s : round_) imbalances.push_back(r_.imbalance_at(s.mesh.ep));
    add_gathers(imbalances);
    exchange_.choose(round_, imbalances, num_threads_);
    std::vector<Visited> visited;
    if (!r_.schedules_mixtures()) {
      for (const Strategy& s : round_) visited.push_back({s, std::nullopt});
      return visited;
    }
    std::vector<std::optional<Visited>> found(round_.size());
    // Chunks are of rows.
    std::vector<Strategy> of_rows = round_;
    if (!exchange_.is_fixed()) {
      exchange_.choose(of_rows, imbalances, num_threads_, true);
      // Groups of peers are sent to straight. Where nobody asks for them they are tried beside
      // exchanges that do so.
      if (r_.fixed.moe_schedule && traits(*r_.fixed.moe_schedule).groups_peers)
        for (Strategy& s : of_rows)
          if (traits(s.all_to_all).forwards) s = exchange_.with_plain_exchange(s);
    }
    share_items(num_threads_, std::ssize(round_), [&](int64_t thread, int64_t item) {
      const auto i = static_cast<size_t>(item);
      found[i] = with_schedule(estimator(thread), round_[i], of_rows[i], imbalances[i]);
    });
    for (std::optional<Visited>& one : found)
      if (one) visited.push_back(std::move(*one));
    num_with_moe_schedule_ += std::ssize(visited);
    return visited;
  }

  // A ring has more messages one after the other: where costs are exact, a gather may be faster. It
  // is then tried beside the ring, which needs less memory.
  void add_gathers(std::vector<double>& imbalances) {
    if (!r_.has_exact_costs() || r_.fixed.context_exchange) return;
    const size_t count = round_.size();
    std::vector<uint8_t> is_faster(count);
    share_items(num_threads_, std::ssize(round_), [&](int64_t thread, int64_t item) {
      const auto i = static_cast<size_t>(item);
      if (!strategy::has_ring(round_[i])) return;
      is_faster[i] =
          seconds_through_layers(estimator(thread), gathering(round_[i]), imbalances[i]) <
          seconds_through_layers(estimator(thread), round_[i], imbalances[i]);
    });
    for (size_t i = 0; i < count; ++i) {
      if (is_faster[i] == 0) continue;
      round_.push_back(gathering(round_[i]));
      imbalances.push_back(imbalances[i]);
    }
  }
  static Strategy gathering(Strategy s) {
    s.context_exchange = strategy::ContextExchange::kGather;
    return s;
  }

  std::optional<Visited> with_schedule(cost::Estimator& estimator, Strategy s, Strategy of_rows,
                                       double imbalance) const {
    const bool is_allowed = choose_moe_schedule(estimator, r_.fixed, s, imbalance);
    if (s.all_to_all == of_rows.all_to_all)
      return is_allowed ? std::optional<Visited>({s, std::nullopt}) : std::nullopt;
    const bool is_other = choose_moe_schedule(estimator, r_.fixed, of_rows, imbalance);
    if (!is_allowed)
      return is_other ? std::optional<Visited>({of_rows, std::nullopt}) : std::nullopt;
    Visited visited{s, std::nullopt};
    if (is_other && of_rows.moe_chunks > 1 &&
        seconds_through_layers(estimator, of_rows, imbalance) <
            seconds_through_layers(estimator, s, imbalance) * (1 - kMoeScheduleTie))
      visited.alone = of_rows;
    return visited;
  }

  // A few hundred times in all. Screening is a quarter of the work, and what it leaves the rest.
  void show(int64_t done) {
    if (!r_.progress || done < next_shown_) return;
    const int64_t all = std::ssize(shapes_), left = std::ssize(bounded_);
    next_shown_ = done + 1 + left / 256;
    if (!screens(r_)) return r_.progress(done, all);
    r_.progress(is_screened_ ? all + done * 3 * all / left : done, 4 * all);
  }

  const Request& r_;
  const int64_t num_threads_;
  const std::optional<cost::Rates> rates_;
  ExchangeAxis exchange_;
  std::vector<std::unique_ptr<cost::Estimator>> estimators_;  // by thread; made by it

  std::vector<Shape> shapes_;
  std::vector<Bounded> bounded_;
  std::vector<Strategy> round_;
  Frontier kept_;
  bool is_screened_ = false;
  int64_t num_visited_ = 0, num_passed_over_ = 0, next_shown_ = 0, num_with_moe_schedule_ = 0;
};

}  // namespace

const char* name(Family family) {
  switch (family) {
    case Family::kDataAndExperts:
      return "data and experts";
    case Family::kFullySharded:
      return "fully sharded (ZeRO 3)";
    case Family::kTensor:
      return "tensor parallel";
    case Family::kPipeline:
      return "pipeline";
    case Family::kPipelineAndTensor:
      return "pipeline and tensor";
    case Family::kContext:
      return "context parallel";
  }
  return "?";
}

Family family_of(const Strategy& s) {
  if (s.mesh.cp > 1) return Family::kContext;
  if (s.zero == 3) return Family::kFullySharded;
  if (s.mesh.pp > 1) return s.mesh.tp > 1 ? Family::kPipelineAndTensor : Family::kPipeline;
  return s.mesh.tp > 1 ? Family::kTensor : Family::kDataAndExperts;
}

const Candidate* nearest_of(const Plan& plan) {
  const Candidate* least = nullptr;
  for (const FamilyBest& family : plan.families)
    if (family.smallest &&
        (least == nullptr || family.smallest->estimate.peak_bytes < least->estimate.peak_bytes))
      least = &*family.smallest;
  return least;
}

int64_t threads_of(const Request& request) {
  return request.cluster->watch ? 1 : std::max<int64_t>(1, request.num_threads);
}

bool Request::forbids(cost::Decided decided, const Strategy& s) const {
  if (!fixed.offered || trainer->rules == nullptr) return false;
  return forbidden != nullptr ? forbidden->at(decided, s)
                              : with_rules(*this).forbidden->at(decided, s);
}

Request with_rules(Request request) {
  if (request.trainer->rules == nullptr) return request;
  const Strategy given{.precision = request.precision,
                       .sequence = request.sequence,
                       .global_batch_sequences = request.global_batch_sequences,
                       .capacity = request.fixed.capacity};
  request.forbidden = std::make_shared<const cost::Forbidden>(
      *request.trainer->rules,
      cost::Known{request.model, &given, request.cluster, request.trainer});
  return request;
}

Plan search(const Request& request) {
  const Request asked = with_rules(request);
  return Search(asked).run();
}

}  // namespace piper::plan
