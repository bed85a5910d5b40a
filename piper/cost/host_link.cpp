#include <piper/base/error.h>
#include <piper/cost/host_link.h>

#include <algorithm>
#include <limits>

namespace piper::cost {

namespace {
constexpr double kNotEnded = -1;
}

double host_bytes_per_second(const cluster::Cluster& cluster) {
  constexpr double kPcie = 2.5e10, kCpu = 1e9;
  const auto stated = cluster.numbers.find(kHostRateName);
  if (stated != cluster.numbers.end()) return stated->second;
  return cluster.kind == "cpu" ? kCpu : kPcie;
}

HostLink::HostLink(size_t most_copies) {
  copies_.reserve(most_copies);
  moving_.reserve(most_copies);
}

void HostLink::reset() {
  copies_.clear();
  moving_.clear();
  next_ = 0;
  now_ = 0;
}

void HostLink::post(double at, double seconds, int32_t behind) {
  PIPER_DCHECK(at >= now_ && behind < num_posted());
  copies_.push_back({at, seconds, behind, kNotEnded});
}

double HostLink::end_of(int32_t copy) {
  const Copy& wanted = copies_[static_cast<size_t>(copy)];
  while (wanted.end < 0) go_on();
  return wanted.end;
}

void HostLink::move_until(double then) {
  const double each = (then - now_) / static_cast<double>(moving_.size());
  for (Moving& moving : moving_) moving.left -= each;
  now_ = then;
}

// To the next end or start.
void HostLink::go_on() {
  const auto first = std::ranges::min_element(moving_, {}, &Moving::left);
  double ends = std::numeric_limits<double>::infinity();
  if (first != moving_.end())
    ends = now_ + std::max(0.0, first->left) * static_cast<double>(moving_.size());
  if (next_ < copies_.size()) {
    const Copy& next = copies_[next_];
    const double starts = std::max(now_, next.at);
    const bool is_free = next.behind == kNone || copies_[static_cast<size_t>(next.behind)].end >= 0;
    if (is_free && starts < ends) {
      move_until(starts);
      moving_.push_back({static_cast<int32_t>(next_++), next.seconds});
      return;
    }
  }
  PIPER_DCHECK(first != moving_.end());
  const int32_t ended = first->copy;
  move_until(ends);
  copies_[static_cast<size_t>(ended)].end = ends;
  moving_.erase(first);
}

}  // namespace piper::cost
