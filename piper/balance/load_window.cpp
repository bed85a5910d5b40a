#include <fmt/format.h>
#include <piper/balance/load_window.h>
#include <piper/base/error.h>
#include <piper/base/json.h>

#include <algorithm>
#include <numeric>

namespace piper::balance {

LoadWindow::LoadWindow(int64_t capacity) : capacity_(capacity) {
  PIPER_CHECK(capacity > 0, "a window of at least one step");
}

void LoadWindow::add(const LayerLoads& step) {
  PIPER_CHECK(steps_.empty() || steps_[0].size() == step.size(), "the same layers every step");
  steps_.push_back(step);
  if (num_steps() > capacity_) steps_.pop_front();
}

LayerLoads LoadWindow::sums(size_t first, size_t end) const {
  LayerLoads sums;
  for (size_t i = first; i < end; ++i)
    for (const auto& [layer, loads] : steps_[i]) {
      Loads& sum = sums[layer];
      sum.resize(loads.size());
      for (size_t e = 0; e < loads.size(); ++e) sum[e] += loads[e];
    }
  return sums;
}

Json LoadWindow::to_json() const {
  Json json = Json::object();
  for (const LayerLoads& step : steps_)
    for (const auto& [layer, loads] : step) json[std::to_string(layer)].push_back(loads);
  return json;
}

void LoadWindow::read(const Json& json, const std::map<int32_t, int64_t>& num_experts,
                      const std::string& source) {
  const auto refuse = [&](const std::string& what) {
    throw InvalidInput(
        fmt::format("{}: {}; allowed: what a run with these layers saved", source, what));
  };
  steps_.clear();
  if (!json.is_object()) refuse("no object of layers");
  if (json.empty()) return;
  if (json.size() != num_experts.size())
    refuse(fmt::format("loads of {} layers for {}", json.size(), num_experts.size()));
  for (const auto& [layer, experts] : num_experts) {
    const auto found = json.find(std::to_string(layer));
    if (found == json.end() || !found->is_array())
      refuse(fmt::format("no loads of layer {}", layer));
    if (steps_.empty()) steps_.resize(found->size());
    if (found->size() != steps_.size() || std::ssize(*found) > capacity_)
      refuse(fmt::format("{} steps of layer {}", found->size(), layer));
    for (size_t i = 0; i < found->size(); ++i) {
      const Json& counts = (*found)[i];
      const auto is_count = [](const Json& count) {
        return count.is_number_integer() && count >= 0 && count <= int64_t{1} << 53;
      };
      if (!counts.is_array() || std::ssize(counts) != experts ||
          !std::ranges::all_of(counts, is_count))
        refuse(fmt::format("step {} of layer {} is {}", i, layer, quote(counts)));
      steps_[i][layer] = counts.get<Loads>();
    }
  }
}

double overlap(const Loads& past, const Loads& next) {
  const auto total = [](const Loads& loads) {
    return static_cast<double>(std::accumulate(loads.begin(), loads.end(), int64_t{0}));
  };
  const double before = total(past), after = total(next);
  if (before == 0 || after == 0) return 1;
  double common = 0;
  for (size_t e = 0; e < past.size() && e < next.size(); ++e)
    common += std::min(static_cast<double>(past[e]) / before, static_cast<double>(next[e]) / after);
  return common;
}

}  // namespace piper::balance
