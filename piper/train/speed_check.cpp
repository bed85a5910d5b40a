#include <piper/profile/reference_layers.h>
#include <piper/train/speed_check.h>

#include <cstring>

namespace piper::train {
SpeedCheck::SpeedCheck(const cluster::Cluster& cluster, strategy::Precision precision,
                       int64_t num_ranks)
    : precision_(precision), seconds_(static_cast<size_t>(num_ranks)) {
  const auto found = cluster.numbers.find(profile::reference_pass_name(precision));
  if (found != cluster.numbers.end()) profiled_seconds_ = found->second;
}

// The layers are there for the window alone: else they would count as the step's memory.
void SpeedCheck::measure(Rank rank, executor::Cores& cores) {
  if (possible())
    seconds_[rank.index()].push_back(profile::reference_window_seconds(precision_, cores));
}

std::string SpeedCheck::part_of(Rank rank) const {
  const std::vector<double>& mine = seconds_[rank.index()];
  std::string part(mine.size() * sizeof(double), '\0');
  if (!mine.empty()) std::memcpy(part.data(), mine.data(), part.size());
  return part;
}

void SpeedCheck::add_part(Rank rank, const std::string& part) {
  std::vector<double>& theirs = seconds_[rank.index()];
  theirs.resize(part.size() / sizeof(double));
  if (!theirs.empty()) std::memcpy(theirs.data(), part.data(), theirs.size() * sizeof(double));
}

std::vector<double> SpeedCheck::slowdowns() const {
  std::vector<double> windows;
  for (size_t window = 0;; ++window) {
    double sum = 0;
    int num_ranks = 0;
    for (const std::vector<double>& rank : seconds_) {
      if (window >= rank.size()) continue;
      sum += rank[window];
      ++num_ranks;
    }
    if (num_ranks == 0) break;
    windows.push_back(sum / num_ranks / profiled_seconds_);
  }
  std::vector<double> steps;
  for (size_t step = 1; step < windows.size(); ++step)
    steps.push_back((windows[step - 1] + windows[step]) / 2);
  return steps;
}

}  // namespace piper::train
