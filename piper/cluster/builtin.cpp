// load_cluster: the built-ins (configs/clusters, built into the library) and files.
#include <embedded/clusters.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/standard_input.h>
#include <piper/base/suggest.h>
#include <piper/cluster/cluster.h>

#include <algorithm>

namespace piper::cluster {
namespace {

bool names_a_file(const std::string& text) {
  std::error_code error;
  return text.find('/') != std::string::npos || text.ends_with(".json") || text == kStandardInput ||
         std::filesystem::exists(text, error);
}

}  // namespace

std::vector<std::string> builtin_clusters() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded::clusters()) names.emplace_back(file.name);
  std::sort(names.begin(), names.end());
  return names;
}

Cluster load_cluster(const std::string& name_or_path) {
  for (const EmbeddedFile& file : embedded::clusters()) {
    if (lower(std::string(file.name)) != lower(name_or_path)) continue;
    const std::string source = fmt::format("built-in cluster {}", file.name);
    return parse_cluster(parse_json(file.text, source), source);
  }
  if (names_a_file(name_or_path)) return parse_cluster(read_json_input(name_or_path), name_or_path);
  const std::vector<std::string> names = builtin_clusters();
  throw InvalidInput(fmt::format("cluster '{}' is not known; allowed: a file or one of {}{}",
                                 name_or_path, fmt::join(names, ", "),
                                 did_you_mean(lower(name_or_path), names)));
}

}  // namespace piper::cluster
