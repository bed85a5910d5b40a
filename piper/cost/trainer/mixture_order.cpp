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

bool need_one_link(const LevelUtilization& one, const LevelUtilization& other) {
  for (size_t l = 0; l < one.part.size(); ++l)
    if (one.part[l] + other.part[l] > kWholeLink) return true;
  return false;
}

double seconds_together(const MixtureParts& parts) {
  const auto n = static_cast<double>(parts.num_chunks);
  const auto one = [&](const CommTime& whole) { return whole.latency + whole.transfer / n; };
  const double there = one(parts.there), in = one(parts.in), experts = parts.experts / n,
               sum = one(parts.sum), back = one(parts.back), out = one(parts.out);
  double exchange = 0, gathered = 0, core = parts.beside, summed = 0, done = 0;
  std::vector<double> returns;
  for (int64_t i = 0; i < parts.num_chunks; ++i) {
    exchange += there;
    gathered = std::max(gathered, exchange) + in;
    core = std::max(core, gathered) + experts;
    summed = std::max(summed, core) + sum;
    returns.push_back(summed);
  }
  for (const double ready : returns) {
    exchange = std::max(exchange, ready) + back;
    done = std::max(done, exchange) + out;
  }
  // Nothing is done twice at a time.
  const double exchanges = n * (there + back), collectives = n * (in + sum + out);
  const double links =
      parts.is_one_link ? exchanges + collectives : std::max(exchanges, collectives);
  return std::max({done, core, links});
}

}  // namespace piper::cost
