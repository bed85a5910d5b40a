#include <piper/plan/frontier.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

namespace piper::plan {
namespace {

auto order(const Candidate& c) {
  const strategy::Mesh& m = c.strategy.mesh;
  return std::tuple(c.estimate.seconds, c.estimate.peak_bytes, m.pp, m.tp, m.cp, m.ep, m.etp, m.vpp,
                    c.strategy.zero, c.strategy.recompute, c.strategy.recompute_per_stage,
                    c.strategy.offload, c.strategy.micro_batch_sequences, c.strategy.schedule,
                    c.strategy.placement);
}
bool faster(const Candidate& a, const Candidate& b) { return order(a) < order(b); }

bool are_twins(const Candidate& a, const Candidate& b) {
  return a.estimate.seconds == b.estimate.seconds &&
         a.estimate.peak_bytes == b.estimate.peak_bytes && a.strategy.mesh == b.strategy.mesh;
}

}  // namespace

bool has_twin(std::span<const Candidate> list, const Candidate& c) {
  return std::ranges::any_of(list, [&](const Candidate& other) { return are_twins(c, other); });
}

Frontier::Frontier(int64_t num_kept) : num_kept_(num_kept), bar_(kInfinity) {
  best_.fill(kInfinity);
  smallest_.fill(kInfinity);
  best_of_schedule_.fill(kInfinity);
  for (const Family family : kFamilies) own_.families.push_back({.family = family});
}

Frontier::Frontier(const Frontier* before) : Frontier(before->num_kept_) {
  before_ = before;
  bar_ = before->bar_;
  best_ = before->best_;
  smallest_ = before->smallest_;
  best_of_schedule_ = before->best_of_schedule_;
}

double Frontier::seconds(strategy::PipelineSchedule schedule) const {
  return std::min(best_of_schedule_[index(schedule)], (1 + kKindSlack) * std::ranges::min(best_));
}

double Frontier::own_front_seconds(double bytes) const {
  const auto at = std::ranges::lower_bound(
      own_.pareto, bytes, std::greater(), [](const Candidate& c) { return c.estimate.peak_bytes; });
  return at == own_.pareto.end() ? kInfinity : at->estimate.seconds;
}

double Frontier::front_seconds(double bytes) const {
  const double own = own_front_seconds(bytes);
  return before_ == nullptr ? own : std::min(own, before_->own_front_seconds(bytes));
}

void Frontier::count_priced(Family f) {
  ++own_.num_priced;
  ++family(f).num_priced;
}

void Frontier::add(const strategy::Strategy& strategy, const cost::Estimate& e) {
  const Family f = family_of(strategy);
  const bool is_best = e.seconds <= seconds(f);
  const bool is_best_of_schedule = e.seconds <= seconds(strategy.schedule);
  const bool is_on_front = e.seconds < front_seconds(e.peak_bytes);
  if (!is_best && !is_best_of_schedule && !is_on_front && e.seconds > bar_) return;
  const Candidate candidate{strategy, e};
  if (is_best) take_best(f, candidate);
  if (is_best_of_schedule) take_best_of_schedule(candidate);
  if (is_on_front) note_front(candidate);
  if (e.seconds <= bar_) keep(candidate);
}

void Frontier::add_unfit(const strategy::Strategy& strategy, const cost::Estimate& e) {
  const Family f = family_of(strategy);
  if (lacks_least(f, e.peak_bytes)) take_smallest(f, {strategy, e});
}

bool Frontier::lacks_least(Family family, double bytes) const {
  return seconds(family) == kInfinity && bytes < smallest_bytes(family);
}

void Frontier::take_best(Family f, const Candidate& candidate) {
  std::optional<Candidate>& best = family(f).best;
  if (best && !faster(candidate, *best)) return;
  best = candidate;
  best_[index(f)] = candidate.estimate.seconds;
}

void Frontier::take_best_of_schedule(const Candidate& candidate) {
  const size_t i = index(candidate.strategy.schedule);
  if (own_of_schedule_[i] && !faster(candidate, *own_of_schedule_[i])) return;
  own_of_schedule_[i] = candidate;
  best_of_schedule_[i] = candidate.estimate.seconds;
}

void Frontier::take_smallest(Family f, const Candidate& candidate) {
  family(f).smallest = candidate;
  smallest_[index(f)] = candidate.estimate.peak_bytes;
}

// Candidates of equal seconds, bytes and mesh are kept once: the first in order().
void Frontier::keep(Candidate candidate) {
  std::vector<Candidate>& ranked = own_.ranked;
  const auto is_twin = [&](const Candidate& c) { return are_twins(c, candidate); };
  if (const auto twin = std::ranges::find_if(ranked, is_twin); twin != ranked.end()) {
    if (faster(candidate, *twin)) *twin = std::move(candidate);
    return;
  }
  if (before_ != nullptr && std::ranges::any_of(before_->own_.ranked, [&](const Candidate& c) {
        return is_twin(c) && faster(c, candidate);
      }))
    return;
  if (std::ssize(ranked) == num_kept_ && !faster(candidate, ranked.back())) return;
  ranked.insert(std::ranges::upper_bound(ranked, candidate, faster), std::move(candidate));
  if (std::ssize(ranked) > num_kept_) ranked.pop_back();
  lower_bar();
}

// To the last that is kept of both together, twins once.
void Frontier::lower_bar() {
  std::span<const Candidate> before;
  if (before_ != nullptr) before = before_->own_.ranked;
  if (std::ssize(before) + std::ssize(own_.ranked) < num_kept_) return;
  std::vector<double> seconds;
  for (const Candidate& c : before) seconds.push_back(c.estimate.seconds);
  for (const Candidate& c : own_.ranked)
    if (!has_twin(before, c)) seconds.push_back(c.estimate.seconds);
  if (std::ssize(seconds) < num_kept_) return;
  const auto last = seconds.begin() + num_kept_ - 1;
  std::ranges::nth_element(seconds, last);
  bar_ = *last;
}

// Kept sorted by seconds.
void Frontier::note_front(const Candidate& candidate) {
  std::vector<Candidate>& front = own_.pareto;
  const cost::Estimate& e = candidate.estimate;
  const auto at = std::ranges::lower_bound(front, e.seconds, {},
                                           [](const Candidate& c) { return c.estimate.seconds; });
  auto last = at;
  while (last != front.end() && last->estimate.peak_bytes >= e.peak_bytes) ++last;
  front.insert(front.erase(at, last), candidate);
}

void Frontier::merge(Frontier&& other) {
  own_.num_priced += other.own_.num_priced;
  own_.num_timed += other.own_.num_timed;
  for (FamilyBest& theirs : other.own_.families) {
    family(theirs.family).num_priced += theirs.num_priced;
    if (theirs.best && theirs.best->estimate.seconds <= seconds(theirs.family))
      take_best(theirs.family, *theirs.best);
    if (theirs.smallest && theirs.smallest->estimate.peak_bytes < smallest_bytes(theirs.family))
      take_smallest(theirs.family, *theirs.smallest);
  }
  for (const std::optional<Candidate>& c : other.own_of_schedule_)
    if (c && c->estimate.seconds <= seconds(c->strategy.schedule)) take_best_of_schedule(*c);
  for (Candidate& c : other.own_.pareto)
    if (c.estimate.seconds < front_seconds(c.estimate.peak_bytes)) note_front(c);
  for (Candidate& c : other.own_.ranked)
    if (c.estimate.seconds <= bar_) keep(std::move(c));
}

Plan Frontier::plan() && {
  for (FamilyBest& family : own_.families)
    if (family.best) family.smallest.reset();
  for (const std::optional<Candidate>& c : own_of_schedule_)
    if (c && c->estimate.seconds <= seconds(c->strategy.schedule)) own_.schedules.push_back(*c);
  return std::move(own_);
}

}  // namespace piper::plan
