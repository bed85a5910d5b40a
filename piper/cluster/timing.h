// How long something takes, from repeated measurements of it: the median, how sure it is, and what
// stood out. And the rule by which a measurement stops: when the median is sure enough, or its
// share of the time is spent.
//
// The 95 % interval of the median is that of the order statistics (distribution-free): with n
// samples in order it reaches from the k-th smallest to the k-th largest, k the largest with
// P(Binomial(n, 1/2) < k) <= 2.5 %. Below six samples there is none, and the interval is what was
// seen. Samples are taken to be independent.
#pragma once

#include <cstdint>
#include <vector>

namespace piper::cluster {

struct Timing {
  double seconds = 0;                        // median
  double low_seconds = 0, high_seconds = 0;  // 95 % interval of the median
  double worst_seconds = 0;                  // the largest sample
  int64_t num_samples = 0;
  // Samples that took longer than Q3 + 3 (Q3 - Q1) and than 1.1 medians (Tukey's outer fence). They
  // are counted in the median, never dropped.
  int64_t num_outliers = 0;

  // The farther end of the interval from the median, as a part of it: 0.02 = "within 2 %". Infinite
  // where there is no interval (fewer than six samples) and for a median of 0.
  double half_width() const;
};

// Requires at least one sample, none negative.
Timing summarise(std::vector<double> seconds);

struct SamplingRule {
  double tight = 0.02;        // half width of the interval at which to stop
  double budget_seconds = 1;  // when to stop however wide the interval
  int64_t min_samples = 3;    // taken however long they last
  int64_t max_samples = 5000;
};

// Samples of one point. The caller measures and says how much time has gone; the same samples and
// times give the same decisions, so ranks that share them decide alike. Not thread-safe.
class Sampler {
 public:
  explicit Sampler(const SamplingRule& rule) : rule_(rule) {}
  void add(double seconds) { samples_.push_back(seconds); }
  // `spent_seconds` since the point began, with all that is not in the samples.
  bool done(double spent_seconds);
  const std::vector<double>& samples() const { return samples_; }

 private:
  SamplingRule rule_;
  std::vector<double> samples_;
  int64_t next_look_ = 6;  // how many samples there are when the interval is formed again
};

}  // namespace piper::cluster
