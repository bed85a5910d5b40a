#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/cli/alltoall_algorithms.h>
#include <piper/collective/algorithms.h>

#include <algorithm>
#include <charconv>

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

int64_t read_bytes(const std::string& flag, const std::string& text, int64_t min, int64_t max,
                   std::vector<std::string>* problems) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string suffix(rest, end);
  const size_t shift = suffix.size() == 1 ? std::string("KMG").find(suffix) : std::string::npos;
  const bool known = suffix.empty() || shift != std::string::npos;
  const int64_t scale = suffix.empty() ? 1 : int64_t{1} << (10 * (shift + 1) % 64);
  if (error == std::errc() && known && value >= 0 && value <= max / scale && value * scale >= min)
    return value * scale;
  problems->push_back(fmt::format("{} is '{}'; allowed: an integer from {} to {}{}", flag, text,
                                  min, max, max > 4096 ? ", K, M or G may follow" : ""));
  return min;
}

}  // namespace piper::cli
