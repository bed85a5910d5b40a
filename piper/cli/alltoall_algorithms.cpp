#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cli/alltoall_algorithms.h>
#include <piper/collective/all_to_all_halo_chunked.h>
#include <piper/collective/all_to_all_halo_printed.h>
#include <piper/collective/all_to_all_naive.h>
#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/all_to_all_pairwise.h>
#include <piper/collective/all_to_all_windowed.h>

#include <algorithm>
#include <array>

namespace piper::cli {
namespace {

using collective::CountOf;
using collective::MemberSteps;
using collective::Topology;

constexpr int64_t kWindow = 4;
constexpr int64_t kChunks = 4;  // of a node's message, when the chunk is not given

int64_t chunk_of(int64_t chunk_bytes, const Topology& topology, const CountOf& count) {
  if (chunk_bytes > 0) return chunk_bytes;
  const collective::Units nodes(topology, 0);
  return std::max<int64_t>(collective::chunk_for(kChunks, nodes.size(0), count(0, 1)), 1);
}

struct Named {
  const char* name;
  MemberSteps (*steps)(int64_t member, const Topology&, const CountOf&, int64_t chunk);
};

constexpr std::array kAll = {
    Named{"flat",
          [](int64_t member, const Topology& topology, const CountOf& count, int64_t) {
            return collective::all_to_all_node_aware(member, topology, count);
          }},
    Named{"naive", [](int64_t member, const Topology& topology, const CountOf& count,
                      int64_t) { return collective::all_to_all_naive(member, topology, count); }},
    Named{"pairwise",
          [](int64_t member, const Topology& topology, const CountOf& count, int64_t) {
            return collective::all_to_all_pairwise(member, topology, count);
          }},
    Named{"windowed",
          [](int64_t member, const Topology& topology, const CountOf& count, int64_t) {
            return collective::all_to_all_windowed(member, topology, count, kWindow);
          }},
    Named{"halo-printed",
          [](int64_t member, const Topology& topology, const CountOf& count, int64_t) {
            return collective::all_to_all_halo_printed(member, topology, count);
          }},
    Named{"halo",
          [](int64_t member, const Topology& topology, const CountOf& count, int64_t) {
            return collective::all_to_all_halo_chunked(member, topology, count);
          }},
    Named{"halo-chunked",
          [](int64_t member, const Topology& topology, const CountOf& count, int64_t chunk) {
            return collective::all_to_all_halo_chunked(member, topology, count, {.chunk = chunk});
          }},
};

}  // namespace

std::vector<std::string> all_to_all_names() {
  std::vector<std::string> names;
  for (const Named& named : kAll) names.emplace_back(named.name);
  return names;
}

comm::Exchange all_to_all(const std::string& name, const Topology& topology, const CountOf& count,
                          int64_t num_ranks, int64_t chunk_bytes) {
  const auto* const found = std::ranges::find(kAll, name, &Named::name);
  if (found == kAll.end())
    throw InvalidInput(fmt::format("--algorithms names '{}'; allowed: {}", name,
                                   fmt::join(all_to_all_names(), ", ")));
  const int64_t chunk = num_ranks > 1 ? chunk_of(chunk_bytes, topology, count) : 1;
  return {name, [steps = found->steps, &topology, &count, chunk](int64_t member) {
            return steps(member, topology, count, chunk);
          }};
}

}  // namespace piper::cli
