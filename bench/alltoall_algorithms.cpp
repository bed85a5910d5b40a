#include <bench/alltoall_algorithms.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cli/byte_count.h>
#include <piper/collective/algorithms.h>

namespace piper::cli {
namespace {

using collective::AllToAll;

bool cuts(AllToAll algorithm) {
  return algorithm == AllToAll::kHalo || algorithm == AllToAll::kHaloSwitch;
}

AllToAll algorithm_named(const std::string& name) {
  for (const AllToAll algorithm : strategy::kAllToAlls)
    if (name == strategy::name(algorithm)) return algorithm;
  if (name == strategy::name(AllToAll::kHaloDedup))
    throw InvalidInput(fmt::format(
        "--algorithms names '{}', which moves routed tokens, not bytes a pair: train with "
        "--all-to-all {}; allowed here: {}",
        name, name, fmt::join(all_to_all_names(), ", ")));
  throw InvalidInput(fmt::format("--algorithms names '{}'; allowed: {}", name,
                                 fmt::join(all_to_all_names(), ", ")));
}

}  // namespace

std::vector<std::string> all_to_all_names() {
  std::vector<std::string> names;
  for (const AllToAll algorithm : strategy::kAllToAlls)
    names.emplace_back(strategy::name(algorithm));
  return names;
}

comm::Exchange all_to_all(const std::string& name, const collective::Topology& topology,
                          const collective::CountOf& count) {
  const size_t colon = name.find(':');
  const AllToAll algorithm = algorithm_named(name.substr(0, colon));
  collective::AllToAllOptions options;
  if (colon != std::string::npos) {
    std::vector<std::string> problems;
    if (!cuts(algorithm))
      problems.push_back(fmt::format(
          "--algorithms names '{}'; allowed: a size behind halo and halo-switch only", name));
    options.chunk =
        read_bytes("--algorithms " + name, name.substr(colon + 1), 1, int64_t{1} << 30, &problems);
    if (!problems.empty()) throw InvalidInput(problems);
  }
  return {name, [algorithm, options, &topology, &count](int64_t member) {
            return collective::all_to_all(algorithm, member, topology, count, options);
          }};
}

}  // namespace piper::cli
