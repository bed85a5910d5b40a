#include <ATen/Parallel.h>
#include <piper/base/error.h>
#include <piper/executor/clock.h>
#include <piper/executor/cores.h>
#include <piper/profile/measure_points.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

namespace piper::profile {
namespace {

constexpr int64_t kFewestSamples = 3;
constexpr double kMostShares = 4;  // that a point may take before it is skipped
// A queue is waited for after so much work: the wait takes some 10 us of it.
constexpr double kShortestDeviceSample = 2e-3;
constexpr int64_t kMostAtFirst = 20, kMostOfSample = 1000;  // calls

// All ranks of one curve.
class CurveRun {
 public:
  CurveRun(const BenchCurve& curve, const Measuring& how)
      : curve_(curve),
        how_(how),
        turns_(how.num_cores > 0 ? std::ceil(static_cast<double>(how.num_ranks) /
                                             static_cast<double>(how.num_cores))
                                 : 1),
        cores_(executor::cores_for(how.num_cores, how.num_ranks)),
        together_(how.num_ranks),
        samples_(static_cast<size_t>(how.num_ranks)) {
    result_ = {.name = curve.name, .unit = curve.unit, .axes = curve.axes};
  }

  cluster::Curve run() {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < samples_.size(); ++rank)
      threads.emplace_back([this, rank] { execute(rank); });
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    return std::move(result_);
  }

 private:
  void execute(size_t rank) {
    try {
      if (how_.device.is_cpu()) at::set_num_threads(1);
      for (const BenchPoint& point : curve_.points) {
        if (rank == 0) decide(point);
        together_.arrive_and_wait();
        if (failed_) break;
        if (skips_) {
          together_.arrive_and_wait();  // all have read it before the next point is decided
          continue;
        }
        const std::function<void()> call = point.prepare();
        together_.arrive_and_wait();
        if (failed_) break;
        sample(rank, call);
        together_.arrive_and_wait();
        if (failed_) break;
        if (rank == 0) keep(point);
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
      failed_ = true;
    }
    together_.arrive_and_drop();
  }

  // Rank 0, while the others wait: whether the point is measured, and for how long at most.
  void decide(const BenchPoint& point) {
    skips_ = true;
    if (how_.journal != nullptr)
      if (const auto known = how_.journal->find(curve_.name, point.at)) {
        result_.points.push_back({point.at, point.amount, *known});
        how_.shares->skip();
        report();
        return;
      }
    const double share = how_.shares->next();
    rule_ = {.tight = how_.tight, .budget_seconds = share / turns_, .min_samples = kFewestSamples};
    if (curve_.may_skip && !result_.points.empty()) {
      const double once = point.amount / result_.points.back().rate();
      if (once * (kFewestSamples + 1) * turns_ > kMostShares * share) return report();
    }
    skips_ = false;
  }

  void sample(size_t rank, const std::function<void()>& call) {
    const executor::Cores::Hold core(cores_);
    ++sampling_;
    const double start = executor::now_seconds();
    try {
      samples_[rank] = time_calls(call, rule_, how_.device);
    } catch (...) {
      --sampling_;
      throw;
    }
    --sampling_;
    // Whoever is done first keeps its core busy: the others are measured with company.
    while (sampling_ > 0 && executor::now_seconds() - start < rule_.budget_seconds) {
      call();
      how_.device.wait();
    }
  }

  void keep(const BenchPoint& point) {
    std::vector<double> all;
    for (const std::vector<double>& of_rank : samples_)
      all.insert(all.end(), of_rank.begin(), of_rank.end());
    const cluster::Timing timing = cluster::summarise(all);
    result_.points.push_back({point.at, point.amount, timing});
    if (how_.journal != nullptr) how_.journal->add(curve_.name, point.at, timing);
    report();
  }

  void report() {
    if (how_.after_point) how_.after_point(curve_.name);
  }

  const BenchCurve& curve_;
  const Measuring& how_;
  double turns_;  // of the cores until every rank has had one
  executor::Cores cores_;
  std::barrier<> together_;
  std::vector<std::vector<double>> samples_;  // of the point, by rank
  cluster::SamplingRule rule_;
  bool skips_ = false;
  std::atomic<int> sampling_ = 0;
  cluster::Curve result_;
  std::atomic<bool> failed_ = false;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

}  // namespace

std::vector<double> time_calls(const std::function<void()>& call, const cluster::SamplingRule& rule,
                               const BenchDevice& device) {
  const auto timed = [&](int64_t repeats) {
    const double before = executor::now_seconds();
    for (int64_t i = 0; i < repeats; ++i) call();
    device.wait();
    return (executor::now_seconds() - before) / static_cast<double>(repeats);
  };
  const double start = executor::now_seconds();
  timed(1);  // first touch, thread-local state of the BLAS
  // A device's first call loads its code. The second says how many in a row tell how long one is.
  const auto filling = [&](int64_t of, int64_t most) {
    return std::clamp<int64_t>(std::llround(kShortestDeviceSample / timed(of)), 1, most);
  };
  const auto repeats_on_device = [&] { return filling(filling(1, kMostAtFirst), kMostOfSample); };
  const int64_t repeats = device.is_cpu() ? 1 : repeats_on_device();
  cluster::Sampler sampler(rule);
  while (!sampler.done(executor::now_seconds() - start)) sampler.add(timed(repeats));
  return sampler.samples();
}

cluster::Curve measure(const BenchCurve& curve, const Measuring& how) {
  PIPER_CHECK(how.shares != nullptr, "a measurement needs a budget");
  return CurveRun(curve, how).run();
}

}  // namespace piper::profile
