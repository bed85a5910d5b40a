// What a search over every axis keeps of the strategies that it prices: the fastest, the best of
// each family and of each pipeline schedule, and the front of speed and memory.
//
// Shapes are searched several at a time, each with a Frontier of its own on top of the one that
// all found when they began: what is asked of it (the bar, the front) is answered by both together,
// what is added goes into its own. merge() afterwards comes to what adding the same strategies one
// after the other comes to.
#pragma once

#include <piper/plan/search.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace piper::plan {

// Whether one of `list` is as `c` to the last bit, though an axis may differ: it makes no
// difference there.
bool has_twin(std::span<const Candidate> list, const Candidate& c);

class Frontier {
 public:
  explicit Frontier(int64_t num_kept);
  // On top of another, which outlives it and does not change meanwhile.
  explicit Frontier(const Frontier* before);

  // Whoever is slower is not among the fastest.
  double bar() const { return bar_; }
  // Seconds of the best of a family; infinite where none fits.
  double seconds(Family family) const { return best_[index(family)]; }
  // Whoever of that pipeline schedule is slower is not kept as its best.
  double seconds(strategy::PipelineSchedule schedule) const;
  // Bytes of the smallest of a family of which none fits; infinite where nothing was added.
  double smallest_bytes(Family family) const { return smallest_[index(family)]; }
  // Whether add_unfit() would keep one that needs so much.
  bool lacks_least(Family family, double bytes) const;
  // Seconds of the fastest on the front that needs at most `bytes`; infinite without any.
  double front_seconds(double bytes) const;

  void count_priced(Family family);
  void count_timed() { ++own_.num_timed; }
  void add(const strategy::Strategy& strategy, const cost::Estimate& estimate);
  void add_unfit(const strategy::Strategy& strategy, const cost::Estimate& estimate);
  // `other` stood on this one.
  void merge(Frontier&& other);

  // The families' smallest where one fits left out.
  Plan plan() &&;

 private:
  static constexpr size_t kNumSchedules = strategy::kPipelineSchedules.size();
  static size_t index(auto kind) { return static_cast<size_t>(kind); }
  FamilyBest& family(Family f) { return own_.families[index(f)]; }
  void keep(Candidate candidate);
  void lower_bar();
  void take_best(Family family, const Candidate& candidate);
  void take_best_of_schedule(const Candidate& candidate);
  void take_smallest(Family family, const Candidate& candidate);
  void note_front(const Candidate& candidate);
  double own_front_seconds(double bytes) const;

  int64_t num_kept_;
  const Frontier* before_ = nullptr;
  double bar_;
  std::array<double, kFamilies.size()> best_, smallest_;
  std::array<double, kNumSchedules> best_of_schedule_;
  std::array<std::optional<Candidate>, kNumSchedules> own_of_schedule_;
  Plan own_;
};

}  // namespace piper::plan
