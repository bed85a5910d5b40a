#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/cost/mfu.h>
#include <piper/plan/sensitivity.h>
#include <piper/plan/what_if.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace piper::plan {
namespace {

// Everything that a price is made of, to be changed.
struct World {
  cluster::Cluster cluster;
  cost::TrainerProfile trainer;
  double imbalance = 1;
  bool has_exact_costs = false;
  double efficiency() const { return trainer.calibration_of(cluster.device).compute_efficiency; }
  void scale_compute(double factor) {
    if (has_exact_costs) {
      cluster = changed(cluster, fmt::format("compute=x{}", factor));
      return;
    }
    trainer.calibration.compute_efficiency = efficiency() * factor;
    trainer.calibrations.clear();
  }
};

struct Input {
  std::string name, value;
  std::function<void(World&, double factor)> scale;
};

class Inputs {
 public:
  explicit Inputs(const World& world) : w_(world) {
    device();
    for (size_t l = 0; l < w_.cluster.levels.size(); ++l) level(l);
    rings();
    layers();
    add("imbalance of experts", fmt::format("{:.2f}", w_.imbalance),
        [](World& w, double f) { w.imbalance = std::max(1.0, w.imbalance * f); });
  }
  std::vector<Input> list;

 private:
  void add(std::string name, std::string value, std::function<void(World&, double)> scale) {
    list.push_back({std::move(name), std::move(value), std::move(scale)});
  }

  void device() {
    add("compute efficiency", w_.has_exact_costs ? "measured" : format_percent(w_.efficiency()),
        [](World& w, double f) { w.scale_compute(f); });
    add("memory bandwidth", format_bytes_per_second(w_.cluster.memory_bytes_per_second),
        [](World& w, double f) {
          w.cluster = changed(w.cluster, fmt::format("memory_bandwidth=x{}", f));
        });
    add("start of a kernel", format_seconds(w_.cluster.fixed_task_seconds),
        [](World& w, double f) { w.cluster.fixed_task_seconds *= f; });
  }

  void level(size_t l) {
    const cluster::Level& level = w_.cluster.levels[l];
    add("bandwidth of level " + level.name, format_bytes_per_second(level.link.bytes_per_second),
        [l](World& w, double f) {
          w.cluster.levels[l].link.bytes_per_second *= f;
          w.cluster.levels[l].nic_bytes_per_second *= f;
          const auto ring = w.cluster.numbers.find("ring_bytes_per_second");
          if (l == 0 && ring != w.cluster.numbers.end()) ring->second *= f;
        });
    add("latency of level " + level.name, format_seconds(level.link.latency_seconds),
        [l](World& w, double f) { w.cluster.levels[l].link.latency_seconds *= f; });
  }

  void ring(const char* name, const char* key, double fallback) {
    const auto found = w_.cluster.numbers.find(key);
    const double seconds = found == w_.cluster.numbers.end() ? fallback : found->second;
    add(name, format_seconds(seconds),
        [key, seconds](World& w, double f) { w.cluster.numbers[key] = seconds * f; });
  }
  void rings() {
    ring("step of a ring inside a node", "node_ring_step_seconds", cost::kNodeStepSeconds);
    if (w_.cluster.levels.size() > 1)
      ring("step of a ring between nodes", "ring_step_seconds", cost::kOuterStepSeconds);
  }

  void layers() {
    const double host =
        std::max(w_.trainer.host_seconds_per_layer, w_.trainer.host_seconds_per_mixture_layer);
    if (host > 0)
      add("host time of a layer", format_seconds(host), [](World& w, double f) {
        w.trainer.host_seconds_per_layer *= f;
        w.trainer.host_seconds_per_mixture_layer *= f;
      });
    if (w_.trainer.serial_seconds_per_layer > 0)
      add("serial time of a layer", format_seconds(w_.trainer.serial_seconds_per_layer),
          [](World& w, double f) { w.trainer.serial_seconds_per_layer *= f; });
    if (w_.trainer.division_seconds_per_replica > 0)
      add("dividing tensors, a layer and replica",
          format_seconds(w_.trainer.division_seconds_per_replica),
          [](World& w, double f) { w.trainer.division_seconds_per_replica *= f; });
  }

  const World& w_;
};

// By the closed form.
double mfu_in(const Request& r, const strategy::Strategy& s, const World& world) {
  const std::unique_ptr<cost::Estimator> estimator = cost::make_estimator(
      *r.model, world.cluster, world.trainer, r.precision, r.sequence, world.has_exact_costs);
  return cost::mfu(*r.model, s, *r.cluster, estimator->estimate(s, world.imbalance).seconds);
}

}  // namespace

double Influence::swing() const { return std::abs(high_mfu - low_mfu); }

std::vector<Influence> sensitivity(const Request& r, const Candidate& candidate, double change) {
  const strategy::Strategy& s = candidate.strategy;
  const World base{.cluster = *r.cluster,
                   .trainer = *r.trainer,
                   .imbalance = r.imbalance_at(s.mesh.ep),
                   .has_exact_costs = r.has_exact_costs()};
  const double now = cost::mfu(*r.model, s, *r.cluster, candidate.step_seconds());
  const double over_closed = now / mfu_in(r, s, base);
  std::vector<Influence> result;
  for (const Input& input : Inputs(base).list) {
    World low = base, high = base;
    input.scale(low, 1 - change);
    input.scale(high, 1 + change);
    result.push_back({input.name, input.value, over_closed * mfu_in(r, s, low),
                      over_closed * mfu_in(r, s, high)});
  }
  std::erase_if(result, [](const Influence& i) { return i.swing() == 0; });
  std::ranges::stable_sort(
      result, [](const Influence& a, const Influence& b) { return a.swing() > b.swing(); });
  return result;
}

}  // namespace piper::plan
