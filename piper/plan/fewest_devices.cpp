#include <piper/base/error.h>
#include <piper/plan/device_walk.h>
#include <piper/plan/fewest_devices.h>
#include <piper/plan/search.h>
#include <piper/plan/setting.h>

#include <algorithm>

namespace piper::plan {
namespace {

class Counter {
 public:
  Counter(const Request& request, const std::function<void(int64_t)>& progress)
      : request_(request), progress_(progress), own_devices_(request.cluster.num_devices()) {
    request_.cluster = extended(request_.cluster);
    request_.num_simulated = 0;
    node_ = request_.cluster.devices_per_node();
    if (request_.cluster.levels.size() == 1) node_ = own_devices_;
  }

  FewestDevices count() {
    result_.num_not_looked_at =
        walk_device_counts(request_.cluster, [&](int64_t num_devices) { return add(num_devices); });
    std::ranges::sort(result_.counts, {}, &DeviceCount::num_devices);
    for (const DeviceCount& at : result_.counts)
      if (at.best && !result_.num_devices) result_.num_devices = at.num_devices;
    return std::move(result_);
  }

 private:
  // Whether it fits; not all counts divide what is fixed.
  std::optional<bool> add(int64_t num_devices) {
    Request request = request_;
    request.num_devices = num_devices;
    Plan plan;
    try {
      plan = make_plan(request);
    } catch (const InvalidInput&) {
      if (num_devices >= node_) throw;  // not a matter of too few
      return std::nullopt;
    }
    if (progress_) progress_(num_devices);
    result_.memory_limit_bytes = plan.memory_limit_bytes;
    if (result_.counts.empty()) result_.defaults = plan.defaults;
    result_.beyond_cluster |= num_devices > own_devices_;
    DeviceCount at{.num_devices = num_devices};
    at.smallest = plan.strategies.empty() ? plan.nearest : least_memory(request);
    if (!plan.strategies.empty()) at.best = std::move(plan.strategies.front());
    result_.counts.push_back(std::move(at));
    return result_.counts.back().best.has_value();
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

  Request request_;
  const std::function<void(int64_t)>& progress_;
  int64_t own_devices_;
  int64_t node_ = 1;
  FewestDevices result_;
};

}  // namespace

FewestDevices fewest_devices(const Request& request, const std::function<void(int64_t)>& progress) {
  return Counter(request, progress).count();
}

}  // namespace piper::plan
