#include <piper/plan/load_ranking.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace piper::plan {
namespace {

auto mesh_of(const Candidate& c) {
  const strategy::Mesh& mesh = c.strategy.mesh;
  return std::tuple(mesh.pp, mesh.ep, mesh.dp);
}

// The best ones, and for every mesh its fastest and its smallest.
std::vector<Candidate> worth_repricing(const Setting& setting, const SearchResult& found) {
  std::vector<Candidate> chosen;
  std::set<std::tuple<int64_t, int64_t, int64_t>> seen;
  for (const Candidate& c : found.ranked)
    if (seen.insert(mesh_of(c)).second || chosen.size() < kMostRepriced) chosen.push_back(c);
  for (const FamilyResult& of : found.families) {
    if (!of.smallest || of.smallest->peak_bytes > setting.memory_limit_bytes) continue;
    const bool is_there = std::ranges::any_of(chosen, [&](const Candidate& c) {
      return mesh_of(c) == mesh_of(*of.smallest) && c.peak_bytes == of.smallest->peak_bytes;
    });
    if (!is_there) chosen.push_back(*of.smallest);
  }
  return chosen;
}

class Repricing {
 public:
  explicit Repricing(const Setting& setting)
      : setting_(setting), request_(*setting.request), load_(*setting.request->load) {}

  void reprice(Candidate& c, int64_t num_samples) {
    std::vector<double> seconds, bytes;
    for (int64_t i = 0; i < num_samples; ++i) {
      const cost::ExpertLoad& sample = sample_of(c.strategy.mesh.ep, i);
      const cost::StepEstimate estimate =
          cost::Estimator(setting_.model(), setting_.cluster(), setting_.precision,
                          setting_.sequence, &sample)
              .estimate(c.strategy);
      seconds.push_back(estimate.seconds);
      bytes.push_back(static_cast<double>(estimate.peak_bytes));
    }
    c.under_load = {cost::spread_of(seconds), cost::spread_of(bytes)};
  }

  double seconds(const Candidate& c) const {
    return cost::value(c.under_load->seconds, request_.load_statistic);
  }
  double bytes(const Candidate& c) const {
    return cost::value(c.under_load->peak_bytes, request_.load_statistic);
  }
  bool fits(const Candidate& c) const {
    return bytes(c) <= static_cast<double>(setting_.memory_limit_bytes);
  }
  // What fits comes first, faster before slower; what does not, smaller before larger.
  void sort(std::vector<Candidate>& candidates) const {
    std::ranges::stable_sort(candidates, [&](const Candidate& a, const Candidate& b) {
      if (fits(a) != fits(b)) return fits(a);
      return fits(a) ? seconds(a) < seconds(b) : bytes(a) < bytes(b);
    });
  }

 private:
  const cost::ExpertLoad& sample_of(int64_t ep, int64_t index) {
    // Only a hot rank depends on who holds the experts.
    const int64_t key = load_.kind == cost::LoadKind::kHotRank ? ep : 0;
    const auto [found, is_new] = samples_.try_emplace({key, index});
    if (is_new)
      found->second = cost::sample_load(load_, setting_.model(), ep, request_.load_seed, index,
                                        request_.num_load_samples);
    return found->second;
  }

  const Setting& setting_;
  const Request& request_;
  const cost::LoadDistribution& load_;
  std::map<std::pair<int64_t, int64_t>, cost::ExpertLoad> samples_;
};

}  // namespace

LoadRanking rank_under_load(const Setting& setting, const SearchResult& found) {
  std::vector<Candidate> candidates = worth_repricing(setting, found);
  const int64_t all = setting.request->num_load_samples;
  LoadRanking result{.num_repriced = std::ssize(candidates)};
  Repricing repricing(setting);
  for (Candidate& c : candidates) repricing.reprice(c, std::min(kFewSamples, all));
  repricing.sort(candidates);
  const size_t in_full = std::min(kMostInFull, candidates.size());
  for (size_t i = 0; i < in_full && all > kFewSamples; ++i) repricing.reprice(candidates[i], all);
  std::vector<Candidate> best(candidates.begin(),
                              candidates.begin() + static_cast<std::ptrdiff_t>(in_full));
  repricing.sort(best);
  for (Candidate& c : best) {
    if (repricing.fits(c))
      result.ranked.push_back(c);
    else if (!result.smallest)
      result.smallest = c;
  }
  result.num_too_large =
      std::ranges::count_if(candidates, [&](const Candidate& c) { return !repricing.fits(c); });
  return result;
}

}  // namespace piper::plan
