#include <bench/alltoall_load.h>
#include <fmt/core.h>
#include <piper/base/error.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

namespace piper::cli {
namespace {

std::vector<double> with_mean_one(std::vector<double> shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share *= static_cast<double>(shares.size()) / sum;
  return shares;
}

std::vector<double> hot_ranks(double factor, const collective::Topology& topology, int64_t n) {
  std::vector<double> shares(n, 1);
  std::set<int32_t> seen;
  for (int64_t r = 0; r < n; ++r)
    if (seen.insert(topology.unit.empty() ? static_cast<int32_t>(r) : topology.unit[0][r]).second)
      shares[r] = factor;
  return shares;
}

std::vector<double> zipf(double exponent, int64_t n) {
  const std::vector<int64_t> place = fixed_order(n);
  std::vector<double> shares(n);
  for (int64_t r = 0; r < n; ++r)
    shares[r] = std::pow(static_cast<double>(place[r] + 1), -exponent);
  return with_mean_one(std::move(shares));
}

std::vector<double> of_trace(const cost::LoadDistribution& load, int64_t n) {
  const std::vector<double>& experts = middle_of_trace(load);
  const auto num_experts = static_cast<int64_t>(experts.size());
  if (num_experts % n != 0)
    throw InvalidInput(fmt::format(
        "--load {}: {} experts over {} ranks; allowed: a number of ranks that divides the experts",
        load.text, num_experts, n));
  std::vector<double> shares(n);
  for (int64_t e = 0; e < num_experts; ++e) shares[e / (num_experts / n)] += experts[e];
  return with_mean_one(std::move(shares));
}

}  // namespace

std::vector<int64_t> fixed_order(int64_t n) {
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(n);  // the engine is the same everywhere; std::shuffle is not
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(order[i], order[random() % static_cast<uint64_t>(i + 1)]);
  return order;
}

const std::vector<double>& middle_of_trace(const cost::LoadDistribution& load) {
  return load.trace.at(load.trace.size() / 2).front();
}

std::vector<double> receiver_shares(const cost::LoadDistribution& load,
                                    const collective::Topology& topology, int64_t num_ranks) {
  switch (load.kind) {
    case cost::LoadKind::kUniform:
      return std::vector<double>(num_ranks, 1);
    case cost::LoadKind::kHotRank:
      return hot_ranks(load.parameter, topology, num_ranks);
    case cost::LoadKind::kZipf:
      return zipf(load.parameter, num_ranks);
    case cost::LoadKind::kTrace:
      return of_trace(load, num_ranks);
    case cost::LoadKind::kHotExpert:
    case cost::LoadKind::kDrift:
      break;
  }
  throw InvalidInput(fmt::format(
      "--load is '{}'; allowed here: uniform, hot-rank:F, zipf:S or trace:FILE", load.text));
}

collective::CountOf counts_of(const std::vector<double>& shares, int64_t bytes_per_pair) {
  std::vector<int64_t> bytes;
  for (const double share : shares)
    bytes.push_back(std::llround(share * static_cast<double>(bytes_per_pair)));
  return [bytes = std::move(bytes)](int64_t, int64_t to) { return bytes.at(to); };
}

}  // namespace piper::cli
