#include <piper/base/error.h>
#include <studies/paper/pipemoe.h>
#include <studies/real.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace piper::studies::paper::pipemoe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNumProducts = 2;  // of an expert

}  // namespace

const char* name(Case of) {
  switch (of) {
    case Case::kOneChunk:
      return "one chunk";
    case Case::kAllToAll:
      return "all-to-all";
    case Case::kExperts:
      return "experts";
    case Case::kAllToAllBesideExperts:
      return "all-to-all beside longer experts";
  }
  PIPER_CHECK(false, "no such case");
}

Case case_of(const Layer& layer, int64_t num_chunks) {
  PIPER_CHECK(num_chunks >= 1, "at least one chunk");
  if (num_chunks == 1) return Case::kOneChunk;
  const double r = real(num_chunks);
  const double travel = layer.all_to_all.chunk_seconds(r),
               computed = layer.experts.chunk_seconds(r);
  if (computed <= travel) return Case::kAllToAll;
  return r * computed > 2 * (r - 1) * travel ? Case::kExperts : Case::kAllToAllBesideExperts;
}

double seconds(const Layer& layer, int64_t num_chunks) {
  const double r = real(num_chunks);
  const double travel = layer.all_to_all.chunk_seconds(r),
               computed = layer.experts.chunk_seconds(r);
  switch (case_of(layer, num_chunks)) {
    case Case::kOneChunk:
    case Case::kExperts:
      return 2 * travel + r * computed;
    case Case::kAllToAll:
    case Case::kAllToAllBesideExperts:
      return 2 * r * travel;
  }
  PIPER_CHECK(false, "no such case");
}

double experts_chunks(const Layer& layer) {
  if (layer.all_to_all.work_seconds <= 0) return 1;  // nothing gets shorter
  if (layer.experts.startup_seconds <= 0) return kNever;
  return std::sqrt(2 * layer.all_to_all.work_seconds / layer.experts.startup_seconds);
}

// r (2 r D - 2 D - r E) = q r^2 + p r - 2 d, with d the all-to-all's work: its smaller positive
// root, or its only one, without cancellation.
double all_to_all_chunks(const Layer& layer) {
  const double d = layer.all_to_all.work_seconds;
  const double q = 2 * layer.all_to_all.startup_seconds - layer.experts.startup_seconds;
  const double p = 2 * d - 2 * layer.all_to_all.startup_seconds - layer.experts.work_seconds;
  const double square = p * p + 8 * d * q;
  if (square < 0) return kNever;
  const double divisor = p + std::sqrt(square);
  return divisor > 0 ? std::max(1.0, 4 * d / divisor) : kNever;
}

Chunks best_chunks(const Layer& layer, int64_t max_chunks) {
  PIPER_CHECK(max_chunks >= 1, "at least one chunk");
  const double best =
      std::clamp(std::min(experts_chunks(layer), all_to_all_chunks(layer)), 1.0, real(max_chunks));
  const auto below = static_cast<int64_t>(std::floor(best));
  const auto above = static_cast<int64_t>(std::ceil(best));
  const double fewer = seconds(layer, below), more = seconds(layer, above);
  return fewer <= more ? Chunks{below, fewer} : Chunks{above, more};
}

int64_t printed_all_to_all_chunks(const Layer& layer) {
  const double startups = layer.all_to_all.startup_seconds - layer.experts.startup_seconds;
  PIPER_CHECK(startups != 0, "the printed formula divides by the difference of the start-ups");
  const double longer = layer.experts.work_seconds - layer.all_to_all.work_seconds;
  return std::max<int64_t>(2, static_cast<int64_t>(std::ceil(longer / startups)));
}

Chunks printed_best_chunks(const Layer& layer, int64_t max_chunks) {
  const int64_t candidate = printed_all_to_all_chunks(layer);
  const double claimed = 2 * real(candidate) * layer.all_to_all.chunk_seconds(real(candidate));
  const Chunks best = best_chunks(layer, max_chunks);
  return claimed < best.seconds ? Chunks{candidate, claimed} : best;
}

Layer fitted_layer(double rows, double hidden, double ffn, const Fit& all_to_all,
                   const Fit& product) {
  return {.all_to_all = {all_to_all.startup_seconds, all_to_all.seconds_per_unit * rows * hidden},
          .experts = {kNumProducts * product.startup_seconds,
                      kNumProducts * product.seconds_per_unit * rows * hidden * ffn}};
}

}  // namespace piper::studies::paper::pipemoe
