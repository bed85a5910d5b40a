#include <piper/base/error.h>
#include <piper/plan/fewest_devices.h>
#include <piper/plan/search.h>
#include <piper/plan/setting.h>

#include <algorithm>

namespace piper::plan {
namespace {

constexpr int64_t kFitsInARow = 3;      // after which more is not looked at
constexpr int64_t kMostNodes = 16'384;  // where the search for a fit gives up
constexpr int64_t kMostBetween = 64;    // counts looked at between two

class Counter {
 public:
  Counter(const Request& request, const std::function<void(int64_t)>& progress)
      : request_(request), progress_(progress), own_devices_(request.cluster.num_devices()) {
    // As many units of the outermost level as it takes.
    cluster::Level& outermost = request_.cluster.levels.back();
    if (request_.cluster.levels.size() > 1) outermost.num_members *= kMostNodes;
    request_.num_simulated = 0;
    node_ = request_.cluster.devices_per_node();
    if (request_.cluster.levels.size() == 1) node_ = own_devices_;
  }

  FewestDevices count() {
    for (const int64_t n : steps())
      if (add(n) && (fits_in_a_row_ >= kFitsInARow)) break;
    look_between();
    std::ranges::sort(result_.counts, {}, &DeviceCount::num_devices);
    for (const DeviceCount& at : result_.counts)
      if (at.best && !result_.num_devices) result_.num_devices = at.num_devices;
    return std::move(result_);
  }

 private:
  std::vector<int64_t> steps() const {
    std::vector<int64_t> list;
    for (int64_t n = 1; n < node_; n *= 2) list.push_back(n);
    if (request_.cluster.levels.size() == 1) {
      list.push_back(node_);
      return list;
    }
    for (int64_t nodes = 1; nodes <= kMostNodes; nodes *= 2) {
      list.push_back(node_ * nodes);
      if (nodes > 1) list.push_back(node_ * nodes * 3 / 2);
    }
    return list;
  }

  // Whether the count could be looked at: not all divide what is fixed.
  bool add(int64_t num_devices) {
    if (progress_) progress_(num_devices);
    Request request = request_;
    request.num_devices = num_devices;
    Plan plan;
    try {
      plan = make_plan(request);
    } catch (const InvalidInput&) {
      if (num_devices >= node_) throw;  // not a matter of too few
      return false;
    }
    result_.memory_limit_bytes = plan.memory_limit_bytes;
    if (result_.counts.empty()) result_.defaults = plan.defaults;
    result_.beyond_cluster |= num_devices > own_devices_;
    DeviceCount at{.num_devices = num_devices};
    at.smallest = plan.strategies.empty() ? plan.nearest : least_memory(request);
    if (!plan.strategies.empty()) at.best = std::move(plan.strategies.front());
    fits_in_a_row_ = at.best ? fits_in_a_row_ + 1 : 0;
    result_.counts.push_back(std::move(at));
    return true;
  }

  static std::optional<Planned> least_memory(const Request& request) {
    const Setting s = make_setting(request);
    cost::Estimator estimator(s.model(), s.cluster(), s.precision, s.sequence);
    const SearchResult found = search(s, make_space(s), estimator);
    const Candidate* least = nullptr;
    for (const FamilyResult& of : found.families)
      if (of.smallest && (least == nullptr || of.smallest->peak_bytes < least->peak_bytes))
        least = &*of.smallest;
    if (least == nullptr) return std::nullopt;
    return Planned{least->strategy, make_prediction(s.model(), s.cluster(), least->strategy,
                                                    estimator.estimate(least->strategy))};
  }

  // The first that fits may have smaller ones before it that were stepped over.
  void look_between() {
    int64_t last_without = 0, first_with = 0;
    for (const DeviceCount& at : result_.counts) {
      if (at.best && first_with == 0) first_with = at.num_devices;
      if (!at.best && first_with == 0) last_without = at.num_devices;
    }
    if (first_with == 0) return;
    const int64_t unit = first_with > node_ ? node_ : 1;
    int64_t n = last_without + unit;
    for (int64_t looked_at = 0; n < first_with && looked_at < kMostBetween; n += unit, ++looked_at)
      if (add(n) && result_.counts.back().best) return;
    result_.num_not_looked_at = std::max<int64_t>(0, (first_with - n + unit - 1) / unit);
  }

  Request request_;
  const std::function<void(int64_t)>& progress_;
  int64_t own_devices_;
  int64_t node_ = 1;
  int64_t fits_in_a_row_ = 0;
  FewestDevices result_;
};

}  // namespace

FewestDevices fewest_devices(const Request& request, const std::function<void(int64_t)>& progress) {
  return Counter(request, progress).count();
}

}  // namespace piper::plan
