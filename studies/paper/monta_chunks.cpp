#include <piper/base/error.h>
#include <studies/paper/monta_chunks.h>

#include <array>
#include <limits>

namespace piper::studies::paper::monta {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::array kLevels{Level::kO1, Level::kO2, Level::kO3};

double seconds(Level level, const Exchange& exchange, const Machine& machine, int64_t n) {
  const ChunkTimes times =
      chunk_times(exchange, machine.bandwidths, machine.efficiencies.at(exchange, n), n);
  switch (level) {
    case Level::kO1:
      return o1_seconds(times);
    case Level::kO2:
      return o2_seconds(times, n);
    case Level::kO3:
      return o3_seconds(times, n);
  }
  PIPER_CHECK(false, "no such level");
}

// Line 6.
bool is_too_small(const Exchange& exchange, const Machine& machine, int64_t n) {
  return exchange.bytes / static_cast<double>(n * exchange.tp) < machine.least_bytes;
}

template <class Search>
Choice least(const Search& search) {
  Choice best{.level = Level::kO1, .chunks = search(Level::kO1)};
  for (const Level level : kLevels) {
    const Chunks found = search(level);
    if (found.seconds < best.chunks.seconds) best = {.level = level, .chunks = found};
  }
  return best;
}

}  // namespace

const char* name(Level level) {
  switch (level) {
    case Level::kO1:
      return "O1";
    case Level::kO2:
      return "O2";
    case Level::kO3:
      return "O3";
  }
  PIPER_CHECK(false, "no such level");
}

Chunks best_chunks(Level level, const Exchange& exchange, const Machine& machine) {
  PIPER_CHECK(machine.least_bytes > 0, "the search needs a smallest chunk");
  Chunks best{.num_chunks = 1, .seconds = seconds(level, exchange, machine, 1)};
  if (level == Level::kO1) return best;
  for (int64_t n = 2; !is_too_small(exchange, machine, n); ++n)
    if (const double t = seconds(level, exchange, machine, n); t < best.seconds)
      best = {.num_chunks = n, .seconds = t};
  return best;
}

Chunks printed_best_chunks(Level level, const Exchange& exchange, const Machine& machine) {
  PIPER_CHECK(machine.least_bytes > 0, "the search needs a smallest chunk");
  if (level == Level::kO1) return best_chunks(level, exchange, machine);
  const double least_seconds = kNever;  // T_min: no line assigns it
  double returned = kNever;             // T, where not even one chunk is tried
  int64_t n = 1;
  for (; !is_too_small(exchange, machine, n); ++n) {
    returned = seconds(level, exchange, machine, n);
    if (returned < least_seconds) returned = least_seconds;
  }
  return {.num_chunks = n, .seconds = returned};
}

Choice best_level(const Exchange& exchange, const Machine& machine) {
  return least([&](Level level) { return best_chunks(level, exchange, machine); });
}

Choice printed_best_level(const Exchange& exchange, const Machine& machine) {
  return least([&](Level level) { return printed_best_chunks(level, exchange, machine); });
}

Outputs outputs(const Choice& choice, const Step& step) {
  const double latency = step.num_exchanges * choice.chunks.seconds + step.other_seconds;
  PIPER_CHECK(latency > 0, "a step takes time");
  return {.latency_seconds = latency,
          .tokens_per_second = step.tokens / latency,
          .mfu = step.model_flops / (latency * step.peak_flops_per_second)};
}

}  // namespace piper::studies::paper::monta
