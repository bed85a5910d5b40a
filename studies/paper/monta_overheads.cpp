#include <piper/base/error.h>
#include <piper/cluster/fit.h>
#include <studies/paper/monta_overheads.h>
#include <studies/real.h>

#include <algorithm>
#include <array>
#include <vector>

namespace piper::studies::paper::monta {
namespace {

constexpr double kLaunchSeconds = 2.5e-6;  // configs/clusters/a800.json, fixed_task_seconds

// `part`: of the tensor's bytes that travel.
cluster::AlphaBeta fit(const cluster::Grid& efficiency, double part, double bytes_per_second) {
  std::vector<cluster::Sample> samples;
  for (size_t i = 0; i < efficiency.rate.size(); ++i) {
    const double bytes = part * efficiency.points[0][i];
    samples.push_back({bytes, bytes / (bytes_per_second * efficiency.rate[i])});
  }
  return cluster::fit_alpha_beta(samples).line;
}

// One chunk of N takes these seconds.
struct Terms {
  double all_to_all = 0, all_gather = 0, copy = 0, memory = 0;
};
Terms terms(const Exchange& x, int64_t num_chunks, const Overheads& o) {
  const double chunk = x.bytes / real(num_chunks);
  const double sent = chunk / real(x.tp) * real(x.ep - 1) / real(x.ep);
  const double received = chunk * real(x.tp - 1) / real(x.tp);
  return {.all_to_all = o.exchange.seconds(sent),
          .all_gather = o.gather.seconds(received),
          .copy = chunk / o.memory_bytes_per_second,
          .memory = 2 * received / o.memory_bytes_per_second};
}

}  // namespace

Overheads published_overheads() {
  const Bandwidths b = published_bandwidths();
  const EfficiencyCurves r = published_efficiencies();
  const double tp = real(kTable8.tp), ep = real(kTable8.ep);
  return {.exchange = fit(r.all_to_all, (ep - 1) / ep, b.across),
          .gather = fit(r.all_gather, (tp - 1) / tp, b.inside),
          .memory_bytes_per_second = b.memory * r.copy.rate.front(),
          .chunk_seconds = (tp * ep + 2) * kLaunchSeconds};
}

double extended_seconds(Level level, const Exchange& x, int64_t num_chunks, const Overheads& o) {
  const Terms t = terms(x, level == Level::kO1 ? 1 : num_chunks, o);
  const double c = o.chunk_seconds, placed = t.all_gather + t.copy + c, n = real(num_chunks);
  switch (level) {
    case Level::kO1:
      return o.skew_seconds + t.all_to_all + t.all_gather;
    case Level::kO2:
      return o.skew_seconds + t.all_to_all + (n - 1) * std::max(t.all_to_all, placed) + placed;
    case Level::kO3: {
      const double beside =
          std::max({t.all_to_all, t.all_gather + c, t.copy + t.memory + c}) + o.stall_seconds;
      return o.skew_seconds + t.all_to_all + (n - 1) * beside + placed;
    }
  }
  PIPER_CHECK(false, "no such level");
}

Level extended_level(const Exchange& exchange, int64_t num_chunks, const Overheads& overheads) {
  return std::ranges::min(std::array{Level::kO1, Level::kO2, Level::kO3}, {}, [&](Level level) {
    return extended_seconds(level, exchange, num_chunks, overheads);
  });
}

double equal_chunk_seconds(const Exchange& exchange, int64_t num_chunks,
                           const Overheads& overheads) {
  PIPER_CHECK(num_chunks >= 2, "one chunk has nothing to overlap");
  Overheads free = overheads;
  free.chunk_seconds = 0;
  return (extended_seconds(Level::kO1, exchange, 1, free) -
          extended_seconds(Level::kO2, exchange, num_chunks, free)) /
         real(num_chunks);
}

double equal_stall_seconds(const Exchange& exchange, int64_t num_chunks,
                           const Overheads& overheads) {
  PIPER_CHECK(num_chunks >= 2, "one chunk has nothing to overlap");
  Overheads free = overheads;
  free.stall_seconds = 0;
  return (extended_seconds(Level::kO2, exchange, num_chunks, free) -
          extended_seconds(Level::kO3, exchange, num_chunks, free)) /
         real(num_chunks - 1);
}

}  // namespace piper::studies::paper::monta
