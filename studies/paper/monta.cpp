#include <piper/base/error.h>
#include <studies/paper/monta.h>
#include <studies/real.h>

#include <algorithm>

namespace piper::studies::paper::monta {
namespace {

// The part of n equal shares that goes to others.
double others(int64_t n) { return real(n - 1) / real(n); }

cluster::Grid curve(std::vector<double> bytes, std::vector<double> efficiency) {
  return {.axes = {"bytes"}, .points = {std::move(bytes)}, .rate = std::move(efficiency)};
}

}  // namespace

double exchange_bytes(double micro_batch, double sequence, double hidden, double element_bytes) {
  return micro_batch * sequence * hidden * element_bytes;
}

Efficiencies EfficiencyCurves::at(const Exchange& exchange, int64_t num_chunks) const {
  const double gathered = exchange.bytes / real(num_chunks);
  return {.all_to_all = all_to_all.at({gathered / real(exchange.tp)}),
          .all_gather = all_gather.at({gathered}),
          .copy = copy.at({gathered})};
}

Bandwidths published_bandwidths() { return {.across = 25e9, .inside = 200e9, .memory = 1.6e12}; }

EfficiencyCurves published_efficiencies() {
  return {.all_to_all = curve({8e6, 32e6, 256e6}, {0.427, 0.632, 0.741}),
          .all_gather = curve({64e6, 256e6, 8192e6}, {0.726, 0.776, 0.803}),
          .copy = curve({64e6, 256e6}, {0.8, 0.8})};
}

ChunkTimes chunk_times(const Exchange& x, const Bandwidths& b, const Efficiencies& r,
                       int64_t num_chunks) {
  PIPER_CHECK(num_chunks >= 1, "at least one chunk");
  const double chunk = x.bytes / real(num_chunks);
  return {.all_to_all = chunk / real(x.tp) * others(x.ep) / (b.across * r.all_to_all),
          .all_gather = chunk * others(x.tp) / (b.inside * r.all_gather),
          .copy = chunk / (b.memory * r.copy)};
}

double baseline_seconds(const Exchange& x, const Bandwidths& b, const Efficiencies& r) {
  return x.bytes * others(x.ep) / (b.across * r.all_to_all);
}

double o1_seconds(const ChunkTimes& whole) { return whole.all_to_all + whole.all_gather; }

double o2_seconds(const ChunkTimes& c, int64_t num_chunks) {
  const double n = real(num_chunks), placed = c.all_gather + c.copy;
  return c.all_to_all < placed ? c.all_to_all + placed * n : c.all_to_all * n + placed;
}

double o3_seconds(const ChunkTimes& c, int64_t num_chunks) {
  const double n = real(num_chunks);
  return c.all_to_all < c.all_gather ? c.all_to_all + c.all_gather * n + c.copy
                                     : c.all_to_all * n + c.all_gather + c.copy;
}

double exchange_over_gather(int64_t tp, int64_t ep, double ratio, const Efficiencies& r) {
  return real(ep - 1) * ratio * r.all_gather / (real(ep) * real(tp - 1) * r.all_to_all);
}

double gain_bound(int64_t tp, int64_t ep, double ratio, int64_t num_chunks) {
  PIPER_CHECK(ep >= 2 && ratio > 0, "nothing leaves the node");
  const double all_to_all = 1 / real(tp), all_gather = others(tp) / others(ep) / ratio;
  const double first = num_chunks > 0 ? std::min(all_to_all, all_gather) / real(num_chunks) : 0;
  return 1 / (first + std::max(all_to_all, all_gather));
}

double least_ratio_of_full_gain(int64_t tp, int64_t ep) {
  PIPER_CHECK(ep >= 2, "nothing leaves the node");
  return real(tp - 1) / others(ep);
}

double scheme_1_seconds(const ChunkTimes& whole) { return 2 * whole.all_to_all + whole.all_gather; }

double scheme_2_seconds(double baseline_seconds) { return 2 * baseline_seconds; }

}  // namespace piper::studies::paper::monta
