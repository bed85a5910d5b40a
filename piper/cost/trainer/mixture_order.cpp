#include <piper/cost/trainer/mixture_order.h>

#include <algorithm>
#include <vector>

namespace piper::cost {
namespace {

constexpr double kWholeLink = 1.001;  // more than this of a link is more than there is

}  // namespace

CommTime of_chunks(const CommTime& whole, int64_t num_chunks) {
  return {static_cast<double>(num_chunks) * whole.latency, whole.transfer};
}

CommTime of_chunks(const std::vector<CommTime>& chunks) {
  CommTime all;
  for (const CommTime& chunk : chunks) {
    all.latency += chunk.latency;
    all.transfer += chunk.transfer;
  }
  return all;
}

bool need_one_link(const LevelUtilization& one, const LevelUtilization& other) {
  for (size_t l = 0; l < one.part.size(); ++l)
    if (one.part[l] + other.part[l] > kWholeLink) return true;
  return false;
}

double seconds_together(const MixtureParts& parts) {
  const auto n = static_cast<double>(parts.num_chunks);
  const auto one = [&](const CommTime& whole) { return whole.latency + whole.transfer / n; };
  const auto travel = [&](const CommTime& whole, const std::vector<CommTime>& chunks, int64_t i) {
    return chunks.empty() ? one(whole) : chunks[static_cast<size_t>(i)].total();
  };
  const double in = one(parts.in), experts = parts.experts / n, sum = one(parts.sum),
               out = one(parts.out);
  double exchanges = 0;
  double exchange = 0, gathered = 0, core = parts.beside, summed = 0, done = 0;
  std::vector<double> returns;
  for (int64_t i = 0; i < parts.num_chunks; ++i) {
    const double there = travel(parts.there, parts.there_of_chunk, i);
    exchange += there;
    exchanges += there;
    gathered = std::max(gathered, exchange) + in;
    core = std::max(core, gathered) + experts;
    summed = std::max(summed, core) + sum;
    returns.push_back(summed);
  }
  for (int64_t i = 0; i < parts.num_chunks; ++i) {
    const double back = travel(parts.back, parts.back_of_chunk, i);
    exchange = std::max(exchange, returns[static_cast<size_t>(i)]) + back;
    exchanges += back;
    done = std::max(done, exchange) + out;
  }
  // Nothing is done twice at a time.
  const double collectives = n * (in + sum + out);
  const double links =
      parts.is_one_link ? exchanges + collectives : std::max(exchanges, collectives);
  return std::max({done, core, links});
}

}  // namespace piper::cost
