#include <piper/base/error.h>
#include <piper/cluster/fit.h>
#include <piper/cost/exchange_time.h>
#include <piper/cost/segment_time.h>
#include <piper/cost/trainer/rates.h>
#include <studies/parm_choice.h>

#include <algorithm>

namespace piper::studies {

namespace parm = paper::parm;

namespace {

constexpr int kHalvings = 8;  // of the largest size

// `seconds`: of a collective of so many elements. `largest`: the elements of the layer's own.
template <class Seconds>
FittedCollective fitted(const char* name, int64_t ranks, double largest, const Seconds& seconds) {
  FittedCollective found{.name = name, .ranks = ranks, .fit = {}};
  if (ranks <= 1) return found;
  std::vector<cluster::Sample> samples;
  for (int i = kHalvings; i >= 0; --i) {
    const double elements = largest / static_cast<double>(1 << i);
    samples.push_back({elements, seconds(elements)});
  }
  const cluster::Fit fit = cluster::fit_alpha_beta(samples);
  found.fit = {fit.line.latency_seconds, 1 / fit.line.bytes_per_second};
  found.worst_error = fit.worst_residual;
  return found;
}

}  // namespace

ParmChoice choose_as_parm(const model::FeedForward& layer, const cost::MoeSetting& s,
                          const cluster::Cluster& cluster) {
  PIPER_CHECK(s.tp > 1 || s.etp > 1, "ranks that share matrices or experts");
  const cost::Rates rates(cluster, s.precision);
  const double bytes = s.precision == strategy::Precision::kFp32   ? 4
                       : s.precision == strategy::Precision::kFp64 ? 8
                                                                   : 2;
  ParmChoice choice{.layer = {.batch = 1,
                              .sequence = s.tokens,
                              .hidden = s.hidden,
                              .num_experts = static_cast<double>(layer.num_experts),
                              .top_k = static_cast<double>(layer.top_k),
                              .capacity_factor = s.rows_per_copy},
                    .degrees = {.mp = s.tp, .ep = s.ep, .esp = s.etp},
                    .collectives = {},
                    .fits = {}};
  const parm::Layer& l = choice.layer;
  const auto esp = static_cast<double>(s.etp), mp = static_cast<double>(s.tp);
  const double rows = l.dispatched_elements() * esp, dealt = rows / mp;
  // A profiled machine's collectives are those that it measured.
  const bool is_measured = cost::is_measured(cluster);
  const auto gather = [&](int64_t size, double elements) {
    return is_measured ? cost::all_gather_seconds(cluster, {.size = size}, bytes * elements)
                       : rates.all_gather_seconds(size, 1, bytes * elements);
  };
  const auto sum = [&](int64_t size, double elements) {
    return is_measured ? cost::all_reduce_seconds(cluster, {.size = size}, bytes * elements)
                       : rates.all_reduce_seconds(size, 1, bytes * elements);
  };
  const auto exchange = [&](int64_t size, int64_t stride, double elements) {
    const cost::Group group{.stride = stride, .size = size};
    return is_measured ? cost::all_to_all_seconds(cluster, group,
                                                  bytes * elements / static_cast<double>(size))
                       : rates.all_to_all(size, stride, bytes * elements, 1).total();
  };
  const auto fused = [&](double elements) { return exchange(s.ep * s.etp, 1, elements); };
  const auto add = [&](FittedCollective of) {
    choice.collectives.push_back(of);
    return of.fit;
  };
  choice.fits.esp_all_gather = add(fitted("ESP-AllGather", s.etp, l.input_elements() * esp,
                                          [&](double x) { return gather(s.etp, x); }));
  choice.fits.esp_all_reduce =
      add(fitted("ESP-AllReduce", s.etp, rows, [&](double x) { return sum(s.etp, x); }));
  choice.fits.ep_all_to_all =
      add(fitted("EP-AlltoAll", s.ep, rows, [&](double x) { return exchange(s.ep, s.etp, x); }));
  choice.fits.fused_all_to_all = add(fitted("EP&ESP-AlltoAll", s.ep * s.etp, dealt, fused));
  choice.fits.mp_all_gather = add(fitted("MP-AllGather", s.tp, l.dispatched_elements(),
                                         [&](double x) { return gather(s.tp, x); }));
  // By the elements of the exchange; what is gathered beside it is N_MP / N_ESP times as much.
  const auto overlap = [&](double x) {
    return parm::saa_seconds(s.ep * s.etp > 1 ? fused(x) : 0, gather(s.tp, x * mp / esp),
                             s.ep * s.etp);
  };
  choice.fits.overlapped =
      s.tp > 1 ? add(fitted("Overlap", std::max(s.tp, s.ep * s.etp), dealt, overlap))
               : choice.fits.fused_all_to_all;  // beside nothing
  choice.baseline_seconds = parm::baseline_seconds(l, choice.degrees, choice.fits);
  choice.s1_seconds = parm::s1_seconds(l, choice.degrees, choice.fits);
  choice.s2_seconds = parm::s2_seconds(l, choice.degrees, choice.fits);
  choice.corrected = parm::better_schedule(l, choice.degrees, choice.fits);
  choice.printed = parm::printed_better_schedule(l, choice.degrees, choice.fits);
  return choice;
}

}  // namespace piper::studies
