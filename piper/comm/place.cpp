#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/comm/network.h>
#include <piper/comm/place.h>

#include <charconv>
#include <map>

namespace piper::comm {
namespace {

constexpr int32_t kMaxNics = 256;

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

std::vector<std::string> read_groups(const std::string& text) {
  std::vector<std::string> groups;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    groups.push_back(trimmed(text.substr(begin, end - begin)));
    if (groups.back().empty())
      throw InvalidInput(fmt::format(
          "PIPER_GROUPS is '{}'; allowed: names with commas between them, innermost first", text));
    begin = end + 1;
  }
  return groups;
}

int32_t read_nic(const std::string& text) {
  int32_t nic = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, nic);
  if (error != std::errc() || rest != end || nic < 0 || nic >= kMaxNics)
    throw InvalidInput(
        fmt::format("PIPER_NIC is '{}'; allowed: an integer from 0 to {}", text, kMaxNics - 1));
  return nic;
}

std::string to_text(const Place& place) {
  return Json{{"node", place.node}, {"nic", place.nic}, {"groups", place.groups}}.dump();
}

Place from_text(const std::string& text) {
  const Json json = Json::parse(text);
  return {json.at("node"), json.at("nic"), json.at("groups")};
}

// The unit that contains unit `inner` of the level within is `outer`, everywhere.
void check_nested(const std::vector<Place>& places, const collective::Topology& topology) {
  for (size_t level = 1; level < topology.unit.size(); ++level) {
    std::map<int32_t, int32_t> outer;
    for (size_t r = 0; r < topology.unit[level].size(); ++r) {
      const int32_t inner = topology.unit[level - 1][r], unit = topology.unit[level][r];
      if (outer.try_emplace(inner, unit).first->second == unit) continue;
      throw InvalidInput(fmt::format(
          "rank {}: '{}' is in '{}' here and in another one elsewhere (PIPER_NODE, PIPER_GROUPS)",
          r, level == 1 ? places[r].node : places[r].groups[level - 2],
          places[r].groups[level - 1]));
    }
  }
}

}  // namespace

Place place_from(const LookUp& look_up) {
  Place place;
  const auto node = look_up("PIPER_NODE"), nic = look_up("PIPER_NIC"),
             groups = look_up("PIPER_GROUPS");
  place.node = node && !node->empty() ? *node : host_name();
  if (nic && !nic->empty()) place.nic = read_nic(*nic);
  if (groups && !groups->empty()) place.groups = read_groups(*groups);
  return place;
}

collective::Topology gather_topology(World& world, const Place& mine) {
  const std::vector<std::string> texts = world.share("places of the ranks", to_text(mine));
  const int64_t ranks_per_process = world.size() / world.num_processes();
  std::vector<Place> places;  // by rank
  for (int64_t r = 0; r < world.size(); ++r)
    places.push_back(from_text(texts[r / ranks_per_process]));

  const size_t num_groups = places.front().groups.size();
  collective::Topology topology;
  topology.unit.resize(1 + num_groups);
  std::vector<std::map<std::string, int32_t>> numbers(1 + num_groups);
  for (int64_t r = 0; r < world.size(); ++r) {
    if (places[r].groups.size() != num_groups)
      throw InvalidInput(fmt::format("PIPER_GROUPS names {} groups at rank {} and {} at rank 0",
                                     places[r].groups.size(), r, num_groups));
    topology.nic.push_back(places[r].nic);
    for (size_t level = 0; level <= num_groups; ++level) {
      const std::string& name = level == 0 ? places[r].node : places[r].groups[level - 1];
      const auto next = static_cast<int32_t>(numbers[level].size());
      topology.unit[level].push_back(numbers[level].try_emplace(name, next).first->second);
    }
  }
  check_nested(places, topology);
  return topology;
}

}  // namespace piper::comm
