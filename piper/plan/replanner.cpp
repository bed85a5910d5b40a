#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/balance/rank_load.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cost/expert_rows.h>
#include <piper/plan/replanner.h>
#include <piper/sim/simulate.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace piper::plan {
namespace {

// What is said to be not as assumed: only words hang on it.
constexpr double kWorthSaying = 1.2;

double median_seconds(const std::deque<ObservedStep>& steps) {
  std::vector<double> seconds;
  for (const ObservedStep& step : steps) seconds.push_back(step.seconds);
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

std::map<int32_t, std::vector<int64_t>> summed_rows(const std::deque<ObservedStep>& steps) {
  std::map<int32_t, std::vector<int64_t>> sums = steps.front().expert_rows;
  for (auto step = std::next(steps.begin()); step != steps.end(); ++step)
    for (const auto& [layer, rows] : step->expert_rows)
      for (size_t e = 0; e < rows.size(); ++e) sums.at(layer)[e] += rows[e];
  return sums;
}

// Divides rows summed over `steps` global batches, rounded, into those of one.
std::map<int32_t, std::vector<int64_t>> of_one_step(std::map<int32_t, std::vector<int64_t>> rows,
                                                    int64_t steps) {
  for (auto& [layer, counts] : rows)
    for (int64_t& count : counts) count = (count + steps / 2) / steps;
  return rows;
}

// Rows of the busiest rank over the mean, the mean of all layers with experts.
double mean_imbalance(const std::map<int32_t, std::vector<int64_t>>& rows, int64_t ep,
                      const balance::Placements& placements) {
  double sum = 0, layers = 0;
  for (const auto& [layer, counts] : rows) {
    const auto num_experts = static_cast<int64_t>(counts.size());
    if (num_experts % ep != 0) continue;
    const auto placed = placements.find(layer);
    sum += balance::imbalance(placed != placements.end() && placed->second.num_ranks() == ep
                                  ? placed->second
                                  : balance::ExpertPlacement::plain(num_experts, ep),
                              counts);
    layers += 1;
  }
  return layers > 0 ? sum / layers : 1;
}

std::vector<double> figures_of(const ObservedMachine& machine, double imbalance) {
  std::vector<double> figures = machine.compute;
  figures.insert(figures.end(), machine.links.begin(), machine.links.end());
  figures.push_back(imbalance);
  return figures;
}

bool are_within(const std::vector<double>& figures, const std::vector<double>& others,
                double bound) {
  return std::ranges::equal(figures, others, [&](double a, double b) {
    return std::max(a, b) <= (1 + bound) * std::min(a, b);
  });
}

}  // namespace

std::optional<Replanned> Replanner::note(ObservedStep step, int64_t steps_left,
                                         const balance::Placements& placements) {
  if (!policy_.is_on() || ++num_seen_ <= kWarmUpSteps) return std::nullopt;
  window_.push_back(std::move(step));
  if (std::ssize(window_) < kSteps) return std::nullopt;
  std::optional<Replanned> found = decide(steps_left, placements);
  if (found) found->step = window_.back().number;
  window_.clear();
  const bool agrees = agreed_ && found;
  agreed_ = found.has_value();
  if (agreed_ && !agrees) asked_.clear();  // the next window is to confirm it
  if (!agrees) return std::nullopt;
  const std::string strategy = strategy::to_json(found->proposal.strategy).dump();
  if (strategy == said_) return std::nullopt;
  said_ = strategy;
  return found;
}

std::optional<Replanned> Replanner::decide(int64_t steps_left,
                                           const balance::Placements& placements) {
  const std::map<int32_t, std::vector<int64_t>> rows = summed_rows(window_);
  cost::ExpertLoad load =
      cost::load_of(*request_.model, present_, of_one_step(rows, std::ssize(window_)));
  load.placements = placements;
  const cost::Prices prices =
      cost::price(step_, *request_.model, present_, *request_.cluster, load);
  const graph::Timeline simulated = sim::simulate(step_, prices, false);
  std::vector<ObservedMachine> machines;
  for (const ObservedStep& step : window_) {
    graph::Timeline timeline;
    timeline.tasks = step.tasks;
    machines.push_back(observe(step_, prices, *request_.cluster, simulated, timeline));
  }
  Request request = request_;
  for (int64_t ep = 1; ep <= present_.mesh.world(); ++ep)
    request.imbalance_by_ep[ep] = mean_imbalance(rows, ep, placements);
  Replanned found{.machine = median_of(machines), .change_seconds = change_seconds_};
  const std::vector<double> figures =
      figures_of(found.machine, request.imbalance_at(present_.mesh.ep));
  if (are_within(figures, asked_, policy_.bound)) return std::nullopt;
  asked_ = figures;
  std::optional<Proposal> proposal = propose(request, present_, found.machine, accepts_);
  if (!proposal) return std::nullopt;
  const double staying = std::min(proposal->seconds_staying, median_seconds(window_));
  if (proposal->seconds * (1 + policy_.bound) >= staying) return std::nullopt;
  found.earned_back = std::llround(std::ceil(change_seconds_ / (staying - proposal->seconds)));
  if (found.earned_back >= steps_left) return std::nullopt;
  found.proposal = std::move(*proposal);
  found.why = why(found.machine, request.imbalance_at(present_.mesh.ep));
  return found;
}

std::string Replanner::why(const ObservedMachine& machine, double imbalance) const {
  std::vector<std::string> reasons;
  std::vector<int64_t> slow;
  double slowest = 1;
  for (size_t rank = 0; rank < machine.compute.size(); ++rank)
    if (machine.compute[rank] > kWorthSaying) {
      slow.push_back(static_cast<int64_t>(rank));
      slowest = std::max(slowest, machine.compute[rank]);
    }
  if (std::ssize(slow) == present_.mesh.world())
    reasons.push_back(
        fmt::format("all ranks compute up to {:.1f} times as long as predicted", slowest));
  else if (!slow.empty())
    reasons.push_back(fmt::format("rank{} {} compute{} up to {:.1f} times as long as predicted",
                                  slow.size() > 1 ? "s" : "", fmt::join(slow, ", "),
                                  slow.size() > 1 ? "" : "s", slowest));
  for (size_t level = 0; level < machine.links.size(); ++level)
    if (machine.links[level] > kWorthSaying || machine.links[level] < 1 / kWorthSaying)
      reasons.push_back(fmt::format("messages within a {} take {:.1f} times as long as predicted",
                                    request_.cluster->levels[level].name, machine.links[level]));
  if (imbalance > kWorthSaying)
    reasons.push_back(
        fmt::format("the busiest rank of an expert group has {:.1f} times the mean", imbalance));
  return reasons.empty() ? "what is measured adds up to this"
                         : fmt::format("{}", fmt::join(reasons, "; "));
}

std::string to_text(const Replanned& replanned, const strategy::Strategy& present) {
  const Proposal& p = replanned.proposal;
  return fmt::format(
      "{} would now take {} a step, {} takes {} ({:+.0f} %): {}; the change costs about {}, earned "
      "back in {} steps",
      describe(p.strategy), format_seconds(p.seconds), describe(present),
      format_seconds(p.seconds_staying), (p.seconds / p.seconds_staying - 1) * 100, replanned.why,
      format_seconds(replanned.change_seconds), replanned.earned_back);
}

}  // namespace piper::plan
