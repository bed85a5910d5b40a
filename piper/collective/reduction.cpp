#include <piper/base/error.h>
#include <piper/collective/reduction.h>

#include <numeric>

namespace piper::collective {

Reduction::Reduction(int64_t member, std::vector<Block> all, int64_t count)
    : steps(member, 0, count), shares(std::move(all)), free(shares.size()) {
  PIPER_CHECK(member >= 0 && member < num_members() && count >= 0);
}

std::vector<Block> shares_by_number(int64_t num_members, int64_t count) {
  std::vector<Block> shares;
  for (int64_t m = 0; m < num_members; ++m) shares.push_back(reduce_share(m, num_members, count));
  return shares;
}

std::vector<Block> shares_of(std::span<const int64_t> counts) {
  std::vector<Block> shares;
  int64_t offset = 0;
  for (const int64_t count : counts) {
    shares.push_back({Buffer::kOutput, offset, count});
    offset += count;
  }
  return shares;
}

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int32_t add_in_order(StepBuilder& steps, const std::vector<SumTerm>& terms, size_t own) {
  int32_t last = -1;
  const auto add = [&](const SumTerm& source, const SumTerm& target) {
    After after;
    for (const int32_t step : {source.step, target.step, last}) wait_for(after, step);
    const int32_t added = steps.add(source.block, target.block, after);
    if (added >= 0) last = added;
  };
  for (size_t i = 1; i < own; ++i) add(terms[i], terms[0]);
  if (own > 0) add(terms[0], terms[own]);
  for (size_t i = own + 1; i < terms.size(); ++i) add(terms[i], terms[own]);
  return last;
}

}  // namespace piper::collective
