#include <piper/collective/all_reduce_hierarchical.h>
#include <piper/collective/reduction.h>

#include <algorithm>
#include <numeric>

namespace piper::collective {
namespace {

std::vector<Block> shares_by_place(const Units& nodes, int64_t count) {
  const int64_t n = nodes.num_members();
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::pair{nodes.place(a), nodes.unit(a)} < std::pair{nodes.place(b), nodes.unit(b)};
  });
  std::vector<Block> shares(n);
  for (int64_t i = 0; i < n; ++i) shares[order[i]] = reduce_share(i, n, count);
  return shares;
}

}  // namespace

MemberSteps all_reduce_hierarchical(int64_t member, const Topology& topology, int64_t count) {
  const Units nodes(topology, 0);
  Reduction reduction(member, shares_by_place(nodes, count), count);
  write_reduce_scatter_hierarchical(reduction, nodes);
  write_all_gather_hierarchical(reduction, nodes);
  return reduction.steps.take();
}

}  // namespace piper::collective
