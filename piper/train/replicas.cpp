#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/checkpoint/tensor_check.h>
#include <piper/strategy/rank_layout.h>
#include <piper/train/replicas.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <tuple>

namespace piper::train {
namespace {

struct Copy {
  Rank rank;
  std::string hash;
};

struct Held {
  std::string name, hash;
  int64_t part = 0;
};

std::vector<Held> parse(Rank rank, const std::string& lines) {
  std::vector<Held> held;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = lines.find('\n', at);
    const std::string line = lines.substr(at, end - at);
    const size_t first = line.find(' '), second = line.find(' ', first + 1);
    int64_t part = 0;
    const auto [behind, error] = std::from_chars(line.data(), line.data() + line.size(), part);
    if (end == std::string::npos || second == std::string::npos || error != std::errc() ||
        behind != line.data() + first)
      throw CommError(fmt::format("what rank {} says of its parameters is garbled", rank.value));
    held.push_back({line.substr(second + 1), line.substr(first + 1, second - first - 1), part});
    at = end + 1;
  }
  return held;
}

// The hash that more than half of the copies have; empty = none.
std::string majority(const std::vector<Copy>& copies) {
  std::map<std::string, size_t> votes;
  for (const Copy& copy : copies)
    if (2 * ++votes[copy.hash] > copies.size()) return copy.hash;
  return "";
}

// Parameters of which a rank, or a group, is said to differ.
struct Drift {
  std::string first;
  size_t num = 0, num_replicas = 0;
  void add(const std::string& name, size_t replicas) {
    if (num++ == 0) first = name, num_replicas = replicas;
  }
  std::string names() const {
    return num == 1 ? first : fmt::format("{} (and of {} more)", first, num - 1);
  }
};

}  // namespace

std::string replica_hashes(const std::vector<nn::Parameter>& parameters,
                           const optim::AdamW& optimizer) {
  std::string lines;
  std::map<std::string, int64_t> parts;
  const auto add = [&](int64_t part, const at::Tensor& value, const std::string& name) {
    lines += fmt::format("{} {} {}\n", part, checkpoint::tensor_hash_text(value), name);
  };
  for (const nn::Parameter& p : parameters) {
    parts[p.name] = p.sharding.index;
    add(p.sharding.index, p.value, p.name);
  }
  for (const nn::NamedTensor& tensor : optimizer.state()) {  // "first_moment/<parameter>"
    const auto part = parts.find(tensor.name.substr(tensor.name.find('/') + 1));
    // States of a share are nobody else's: their name says so.
    add(part == parts.end() ? 0 : part->second, tensor.value, nn::in_file(tensor).name);
  }
  return lines;
}

std::vector<std::string> drifted_replicas(const strategy::Mesh& mesh,
                                          const std::vector<std::string>& handed_in) {
  // By what has to be equal: stage, part, name.
  std::map<std::tuple<int64_t, int64_t, std::string>, std::vector<Copy>> groups;
  for (size_t r = 0; r < handed_in.size(); ++r) {
    const Rank rank(static_cast<int64_t>(r));
    const int64_t stage = strategy::RankLayout(mesh).stage(rank);
    for (const Held& held : parse(rank, handed_in[r]))
      groups[{stage, held.part, held.name}].push_back({rank, held.hash});
  }
  std::map<Rank, Drift> by_rank;
  std::map<std::vector<int32_t>, Drift> undecided;
  for (const auto& [key, copies] : groups) {
    const auto same = [&](const Copy& copy) { return copy.hash == copies.front().hash; };
    if (std::ranges::all_of(copies, same)) continue;
    const std::string most = majority(copies);
    std::vector<int32_t> ranks;
    for (const Copy& copy : copies) {
      ranks.push_back(copy.rank.value);
      if (!most.empty() && copy.hash != most)
        by_rank[copy.rank].add(std::get<2>(key), copies.size() - 1);
    }
    if (most.empty()) undecided[ranks].add(std::get<2>(key), copies.size() - 1);
  }
  std::vector<std::string> lines;
  for (const auto& [rank, drift] : by_rank)
    lines.push_back(fmt::format("rank {}'s copy of {} differs from that of its {} replicas",
                                rank.value, drift.names(), drift.num_replicas));
  for (const auto& [ranks, drift] : undecided)
    lines.push_back(fmt::format("the copies of {} on ranks {} differ, none has a majority",
                                drift.names(), fmt::join(ranks, ", ")));
  return lines;
}

}  // namespace piper::train
