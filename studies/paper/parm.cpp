#include <piper/base/error.h>
#include <studies/paper/parm.h>
#include <studies/real.h>

#include <algorithm>
#include <limits>

namespace piper::studies::paper::parm {
namespace {

double in_group(const CollectiveFit& fit, int64_t members, double elements) {
  return members > 1 ? fit.seconds(elements) : 0;
}

// Returns E T M N_ESP / N_MP, the elements of one way (dispatch or combine) of S1 and S2.
double split_exchange_elements(const Layer& layer, Degrees d) {
  return layer.dispatched_elements() * real(d.esp) / real(d.mp);
}

double fused(const Fits& fits, Degrees d, double elements) {
  return in_group(fits.fused_all_to_all, d.ep * d.esp, elements);
}

const CollectiveFit& overlapped(const Fits& fits) {
  PIPER_CHECK(fits.overlapped.has_value(), "the fit of Overlap() is needed");
  return *fits.overlapped;
}

}  // namespace

double baseline_seconds(const Layer& layer, Degrees d, const Fits& fits) {
  const double rows = layer.dispatched_elements() * real(d.esp);
  return in_group(fits.esp_all_gather, d.esp, layer.input_elements() * real(d.esp)) +
         in_group(fits.esp_all_reduce, d.esp, rows) + 2 * in_group(fits.ep_all_to_all, d.ep, rows);
}

double fused_seconds(const Layer& layer, Degrees d, const Fits& fits) {
  return 2 * fused(fits, d, layer.dispatched_elements() * real(d.esp));
}

double s1_seconds(const Layer& layer, Degrees d, const Fits& fits) {
  return 2 * fused(fits, d, split_exchange_elements(layer, d)) +
         in_group(fits.mp_all_gather, d.mp, layer.input_elements());
}

double s2_seconds(const Layer& layer, Degrees d, const Fits& fits) {
  const double elements = split_exchange_elements(layer, d);
  const double there = fused(fits, d, elements);
  if (d.mp == 1) return 2 * there;
  if (fits.overlapped) return there + fits.overlapped->seconds(elements);
  const double gather = in_group(fits.mp_all_gather, d.mp, layer.dispatched_elements());
  return there + saa_seconds(there, gather, d.ep * d.esp);
}

double s2_sequential_seconds(const Layer& layer, Degrees d, const Fits& fits) {
  return 2 * fused(fits, d, split_exchange_elements(layer, d)) +
         in_group(fits.mp_all_gather, d.mp, layer.dispatched_elements());
}

double saa_seconds(double all_to_all, double all_gather, int64_t phases) {
  PIPER_CHECK(phases >= 1, "an exchange has at least one phase");
  const double slice = all_to_all / real(phases), gathered = all_gather / real(phases);
  return slice + real(phases - 1) * std::max(slice, gathered) + gathered;
}

double printed_s1_seconds(const Layer& layer, Degrees d, const Fits& fits) {
  return 2 * fused(fits, d, layer.dispatched_elements() / real(d.mp)) +
         in_group(fits.mp_all_gather, d.mp, layer.input_elements());
}

double printed_s2_seconds(const Layer& layer, Degrees d, const Fits& fits) {
  const double elements = split_exchange_elements(layer, d);
  return fused(fits, d, elements) + overlapped(fits).seconds(elements) +
         in_group(fits.mp_all_gather, d.mp, layer.dispatched_elements());
}

double backward_split_seconds(Schedule schedule, const Layer& layer, Degrees d, const Fits& fits) {
  switch (schedule) {
    case Schedule::kBaseline:
      return in_group(fits.esp_all_gather, d.esp, layer.input_elements() * real(d.esp));
    case Schedule::kS1:
      return in_group(fits.mp_all_gather, d.mp, layer.input_elements());
    case Schedule::kS2:
      return in_group(fits.mp_all_gather, d.mp, layer.dispatched_elements());
  }
  PIPER_CHECK(false, "no such schedule");
}

Schedule better_schedule(const Layer& layer, Degrees d, const Fits& fits) {
  return s1_seconds(layer, d, fits) <= s2_seconds(layer, d, fits) ? Schedule::kS1 : Schedule::kS2;
}

Schedule printed_better_schedule(const Layer& layer, Degrees d, const Fits& fits) {
  const double x = layer.input_elements();                                   // line 1
  const double tokens = layer.expert_tokens() * layer.hidden;                // line 2
  const double y = layer.num_experts * tokens * layer.hidden * real(d.esp);  // line 3
  const double way = fits.fused_all_to_all.seconds(y / real(d.mp));
  const double s1 = 2 * way + fits.mp_all_gather.seconds(x);  // line 4
  const double s2 = way + overlapped(fits).seconds(y);        // line 5
  return s1 <= s2 ? Schedule::kS1 : Schedule::kS2;
}

double least_elements_of_eq_10(Degrees d, const Fits& fits) {
  PIPER_CHECK(d.mp >= 2, "eq. 10 is for N_MP >= 2");
  const double saved =
      2 * fits.fused_all_to_all.seconds_per_element * real(d.esp) * real(d.mp - 1) / real(d.mp);
  const double per_element = saved - fits.mp_all_gather.seconds_per_element;
  if (per_element <= 0) return std::numeric_limits<double>::infinity();
  return fits.mp_all_gather.startup_seconds / per_element;
}

}  // namespace piper::studies::paper::parm
