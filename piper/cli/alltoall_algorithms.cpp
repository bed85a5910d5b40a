#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cli/alltoall_algorithms.h>
#include <piper/collective/all_to_all_flat.h>

namespace piper::cli {
namespace {

collective::MemberSteps flat(int64_t member, int64_t n, const collective::CountOf& count) {
  std::vector<int64_t> sent, received;
  for (int64_t other = 0; other < n; ++other) {
    sent.push_back(count(member, other));
    received.push_back(count(other, member));
  }
  return collective::all_to_all_flat(member, sent, received);
}

}  // namespace

std::vector<std::string> all_to_all_names() { return {"flat"}; }

comm::Exchange all_to_all(const std::string& name, const collective::Topology&,
                          const collective::CountOf& count, int64_t num_ranks, int64_t) {
  if (name == "flat")
    return {name, [count, num_ranks](int64_t member) { return flat(member, num_ranks, count); }};
  throw InvalidInput(fmt::format("--algorithms names '{}'; allowed: {}", name,
                                 fmt::join(all_to_all_names(), ", ")));
}

}  // namespace piper::cli
