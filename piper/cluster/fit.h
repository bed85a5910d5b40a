// Alpha-beta fits: what one message costs, from measured (bytes, seconds) samples.
//
//   T(n) = alpha + n * beta,  alpha >= 0, beta > 0
//
// Least squares of the *relative* error, (T(n_i) - t_i) / T(n_i): a 512-byte message counts as much
// as a 512 MB one, otherwise alpha would be lost in the noise of the largest. Robust: samples that
// lie further from the line than the bulk are weighted down (Huber weights, iterated from a start
// that outliers cannot pull: the median of pairwise slopes, Theil-Sen). Pure functions,
// thread-safe.
#pragma once

#include <piper/cluster/alpha_beta.h>

#include <vector>

namespace piper::cluster {

struct Sample {
  double bytes = 0;
  double seconds = 0;
};

struct Fit {
  AlphaBeta line;
  // (prediction - measured) / measured, in the order of the samples.
  std::vector<double> residuals;
  double median_residual = 0;  // of the absolute residuals
  double worst_residual = 0;   // the largest absolute residual
  // Share of the variance of the seconds that the line explains, weighted as in the fit (1 / T^2):
  // 1 = exact, 0 = no better than a constant.
  double r_squared = 0;
};

// Requires at least two samples with different bytes; all bytes >= 0, seconds > 0, finite
// (PIPER_CHECK: samples come from our own clock or from a checked file). When the samples say that
// time falls with size, beta is that of the largest sample and alpha what is left.
Fit fit_alpha_beta(const std::vector<Sample>& samples);

}  // namespace piper::cluster
