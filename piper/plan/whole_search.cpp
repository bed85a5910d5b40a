#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/plan/exchange_axis.h>
#include <piper/plan/setting.h>
#include <piper/plan/split.h>
#include <piper/plan/stage_recompute.h>
#include <piper/plan/whole.h>
#include <piper/plan/whole_contradictions.h>
#include <piper/plan/whole_shapes.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

namespace piper::plan {
namespace {

using strategy::Offload;
using strategy::PipelineSchedule;
using strategy::Placement;
using strategy::Recompute;
using strategy::Strategy;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

auto order(const WholeCandidate& c) {
  const strategy::Mesh& m = c.strategy.mesh;
  return std::tuple(c.estimate.seconds, c.estimate.peak_bytes, m.pp, m.tp, m.cp, m.ep, m.etp, m.vpp,
                    c.strategy.zero, c.strategy.recompute, c.strategy.recompute_per_stage,
                    c.strategy.offload, c.strategy.micro_batch_sequences, c.strategy.schedule,
                    c.strategy.placement);
}
bool faster(const WholeCandidate& a, const WholeCandidate& b) { return order(a) < order(b); }

class Search {
 public:
  explicit Search(const WholeRequest& request)
      : r_(request),
        estimator_(*request.model, *request.cluster, *request.stack, request.precision,
                   request.sequence),
        exchange_(*request.model, *request.cluster, request.fixed.exchange, request.stack,
                  &estimator_.rates()) {
    for (const WholeFamily family : kWholeFamilies) plan_.families.push_back({.family = family});
  }

  WholePlan run() {
    shapes_ = whole_shapes(r_);
    refuse_contradictions(r_, shapes_);
    plan_.num_shapes = std::ssize(shapes_);
    bound_shapes();
    // The most promising first: what they leave is the bar for the others.
    std::ranges::sort(bounded_, {}, [](const Bounded& b) { return std::pair(b.least, b.index); });
    int64_t done = 0;
    for (const Bounded& b : bounded_) {
      visit(shapes_[b.index], b.least);
      if (++done % 256 == 0 && r_.progress) r_.progress(done, plan_.num_shapes);
    }
    finish();
    return std::move(plan_);
  }

 private:
  struct Bounded {
    double least;
    size_t index;
  };

  Strategy base(const WholeShape& s) const {
    Strategy strategy = with_shape(r_, s);
    strategy.model = r_.model->name;
    strategy.cluster = r_.cluster->name;
    strategy.precision = r_.precision;
    strategy.sequence = r_.sequence;
    strategy.sequence_parallel = s.sequence_parallel;
    strategy.capacity = r_.fixed.capacity;
    return strategy;
  }

  // --- bounds ---
  void bound_shapes() {
    for (size_t i = 0; i < shapes_.size(); ++i) {
      double least = 0;
      if (r_.prunes) {
        const stack::Estimator::Bound bound =
            estimator_.bound(base(shapes_[i]), r_.imbalance_at(shapes_[i].ep));
        least = bound.seconds;
      }
      bounded_.push_back({least, i});
    }
  }

  double bar() const {
    return std::ssize(plan_.ranked) < r_.num_kept ? kInfinity
                                                  : plan_.ranked.back().estimate.seconds;
  }

  // --- one shape: splits, schedules, and what only memory and reductions feel ---
  void visit(const WholeShape& shape, double least) {
    Strategy s = base(shape);
    if (is_beaten(s, least)) {
      ++plan_.num_passed_over;
      return;
    }
    balanced_.clear();
    exchange_.choose(s, r_.imbalance_at(s.mesh.ep));
    for (const PipelineSchedule schedule : strategy::kPipelineSchedules) {
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

  // No strategy of that mesh which takes so long would be kept.
  bool is_beaten(const Strategy& s, double least) {
    const FamilyBest& sharded = plan_.families[static_cast<size_t>(WholeFamily::kFullySharded)];
    const auto beats = [&](const FamilyBest& f) {
      return !r_.keeps_families || (f.best && least > f.best->estimate.seconds);
    };
    const bool can_shard = wanted<int64_t>(r_.fixed.zero, 3) && s.mesh.cp == 1;
    return r_.prunes && least > bar() && beats(family_best(s)) && (!can_shard || beats(sharded));
  }

  void visit_splits(Strategy& s) {
    const int64_t stages = s.mesh.pp * s.mesh.vpp;
    for (const Recompute recompute : strategy::kRecomputes) {
      if (!wanted(r_.fixed.recompute, recompute)) continue;
      s.recompute = recompute;
      s.layers_per_stage = strategy::even_split(r_.model->num_layers(), stages);
      visit_states(s);
      if (stages == 1) continue;
      const std::vector<int64_t>& balanced = balanced_of(s, stages);
      if (balanced == s.layers_per_stage) continue;
      s.layers_per_stage = balanced;
      visit_states(s);
    }
  }

  // Where not every stage fits without, or with the same recomputation.
  void visit_stage_recompute(Strategy& s) {
    if (r_.fixed.recompute || s.mesh.pp == 1) return;
    s.recompute = Recompute::kNone;
    const std::vector<int64_t> even =
        strategy::even_split(r_.model->num_layers(), s.mesh.pp * s.mesh.vpp);
    for (const std::vector<int64_t>& split : {even, balanced_of(s, std::ssize(even))}) {
      s.layers_per_stage = split;
      if (is_beaten(s, estimator_.bound_of_schedule(s, r_.imbalance_at(s.mesh.ep)).seconds))
        continue;
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
        // What is best for the stages as they are is not always best for those to come: tighter limits begin elsewhere.
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
    const auto [found, is_new] = balanced_.try_emplace({s.recompute, stages});
    if (is_new) {
      const stack::Estimator::Pass pass = estimator_.pass_seconds(s, r_.imbalance_at(s.mesh.ep));
      found->second = balanced_split(pass.layers, pass.embedding, pass.head, stages);
    }
    return found->second;
  }

  void visit_states(Strategy& s) {
    if (is_beaten(s, estimator_.bound_of_split(s, r_.imbalance_at(s.mesh.ep)).seconds)) return;
    for_each_state(s, [&] { price(s); });
  }

  // What only memory, reductions and messages feel.
  void for_each_state(Strategy& s, auto visit) {
    for (s.zero = 0; s.zero <= 3; ++s.zero) {
      if (!tries_zero(r_, s, s.zero)) continue;
      for (const Offload offload : strategy::kOffloads) {
        if (!tries_offload(r_, s, offload)) continue;
        s.offload = offload;
        for (const Placement placement : strategy::kPlacements) {
          if (!tries_placement(r_, s, placement)) continue;
          s.placement = placement;
          visit();
        }
      }
    }
    s.zero = 0;
    s.offload = Offload::kNone;
    s.placement = Placement::kDataInside;
  }

  FamilyBest& family_best(const Strategy& s) {
    return plan_.families[static_cast<size_t>(family_of(s))];
  }

  void price(const Strategy& s) {
    FamilyBest& family = family_best(s);
    const double worth_below =
        r_.prunes ? std::max(bar(), family.best ? family.best->estimate.seconds : kInfinity)
                  : kInfinity;
    stack::Estimate e =
        estimator_.estimate(s, r_.imbalance_at(s.mesh.ep), worth_below, r_.memory_limit_bytes);
    ++plan_.num_priced;
    ++family.num_priced;
    const bool fits = e.peak_bytes <= r_.memory_limit_bytes;
    // On the front of speed and memory stands nothing coarse.
    if (fits && e.is_coarse)
      if (const double front = front_seconds(e.peak_bytes); e.at_least < front)
        e = estimator_.estimate(s, r_.imbalance_at(s.mesh.ep), front);
    if (!fits) {
      // Without its scratch the same stage needs so much still.
      const double without = e.peak_bytes - e.fullest.exchange;
      const bool may_help =
          without <= r_.memory_limit_bytes ||
          (!family.best && (!family.smallest || without < family.smallest->estimate.peak_bytes));
      if (may_help && exchange_.may_fall_back(s)) return price(exchange_.with_plain_exchange(s));
      if (!family.best && (!family.smallest || e.peak_bytes < family.smallest->estimate.peak_bytes))
        family.smallest = WholeCandidate{s, e};
      return;
    }
    if (!family.best || e.seconds < family.best->estimate.seconds ||
        (e.seconds == family.best->estimate.seconds && faster({s, e}, *family.best)))
      family.best = WholeCandidate{s, e};
    note_pareto(s, e);
    if (e.seconds > bar()) return;
    keep({s, e});
  }

  void keep(WholeCandidate candidate) {
    std::vector<WholeCandidate>& ranked = plan_.ranked;
    if (std::ssize(ranked) == r_.num_kept && !faster(candidate, ranked.back())) return;
    ranked.insert(std::ranges::upper_bound(ranked, candidate, faster), std::move(candidate));
    if (std::ssize(ranked) > r_.num_kept) ranked.pop_back();
  }

  // Of the fastest on the front that needs no more memory.
  double front_seconds(double bytes) const {
    const auto at =
        std::ranges::lower_bound(plan_.pareto, bytes, std::greater(),
                                 [](const WholeCandidate& c) { return c.estimate.peak_bytes; });
    return at == plan_.pareto.end() ? kInfinity : at->estimate.seconds;
  }

  // The front of seconds and memory, kept sorted by seconds.
  void note_pareto(const Strategy& s, const stack::Estimate& e) {
    std::vector<WholeCandidate>& front = plan_.pareto;
    const auto at = std::ranges::lower_bound(
        front, e.seconds, {}, [](const WholeCandidate& c) { return c.estimate.seconds; });
    if (at != front.begin() && std::prev(at)->estimate.peak_bytes <= e.peak_bytes) return;
    if (at != front.end() && at->estimate.seconds == e.seconds &&
        at->estimate.peak_bytes <= e.peak_bytes)
      return;
    auto last = at;
    while (last != front.end() && last->estimate.peak_bytes >= e.peak_bytes) ++last;
    const auto place = front.erase(at, last);
    front.insert(place, WholeCandidate{s, e});
  }

  void finish() {
    for (FamilyBest& family : plan_.families)
      if (family.best) family.smallest.reset();
  }

  const WholeRequest& r_;
  stack::Estimator estimator_;
  ExchangeAxis exchange_;

  std::vector<WholeShape> shapes_;
  std::vector<Bounded> bounded_;
  std::map<std::pair<Recompute, int64_t>, std::vector<int64_t>> balanced_;
  WholePlan plan_;
};

}  // namespace

const char* name(WholeFamily family) {
  switch (family) {
    case WholeFamily::kDataAndExperts:
      return "data and experts";
    case WholeFamily::kFullySharded:
      return "fully sharded (ZeRO 3)";
    case WholeFamily::kTensor:
      return "tensor parallel";
    case WholeFamily::kPipeline:
      return "pipeline";
    case WholeFamily::kPipelineAndTensor:
      return "pipeline and tensor";
    case WholeFamily::kContext:
      return "context parallel";
  }
  return "?";
}

WholeFamily family_of(const Strategy& s) {
  if (s.mesh.cp > 1) return WholeFamily::kContext;
  if (s.zero == 3) return WholeFamily::kFullySharded;
  if (s.mesh.pp > 1)
    return s.mesh.tp > 1 ? WholeFamily::kPipelineAndTensor : WholeFamily::kPipeline;
  return s.mesh.tp > 1 ? WholeFamily::kTensor : WholeFamily::kDataAndExperts;
}

WholePlan search_whole(const WholeRequest& request) { return Search(request).run(); }

}  // namespace piper::plan
