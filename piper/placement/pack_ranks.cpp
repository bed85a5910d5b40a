#include <piper/base/error.h>
#include <piper/placement/pack_ranks.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <set>

namespace piper::placement {
namespace {

class Unions {
 public:
  explicit Unions(int32_t size) : parent_(static_cast<size_t>(size)) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }
  int32_t root(int32_t i) {
    while (parent_[static_cast<size_t>(i)] != i) {
      int32_t& above = parent_[static_cast<size_t>(i)];
      above = parent_[static_cast<size_t>(above)];
      i = above;
    }
    return i;
  }
  // The smaller number stays the root.
  void join(int32_t a, int32_t b) {
    a = root(a);
    b = root(b);
    parent_[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
  }

 private:
  std::vector<int32_t> parent_;
};

struct Block {
  size_t level = 0;
  std::vector<int32_t> ranks;
};

// A unit's parts that take ranks: units of the next inner boundary, or single slots.
struct Part {
  std::vector<int32_t> slots;
  std::vector<int32_t> ranks;
  size_t room() const { return slots.size() - ranks.size(); }
};

class Packer {
 public:
  Packer(const Slots& slots, const std::vector<std::vector<int32_t>>& blocks, PackRule rule)
      : slots_(slots), blocks_(blocks), rule_(rule), placement_(blocks[0].size(), -1) {}

  RankSlots pack() {
    std::vector<int32_t> slots(static_cast<size_t>(slots_.size()));
    std::vector<int32_t> ranks(placement_.size());
    std::iota(slots.begin(), slots.end(), 0);
    std::iota(ranks.begin(), ranks.end(), 0);
    fill(slots_.num_boundaries(), slots, std::move(ranks));
    return std::move(placement_);
  }

 private:
  // `boundary`: of the unit that these slots are; its parts are those of the next one in.
  void fill(size_t boundary, const std::vector<int32_t>& slots, std::vector<int32_t> ranks) {
    if (boundary == 0) {
      std::ranges::sort(ranks);
      for (size_t i = 0; i < ranks.size(); ++i)
        placement_[static_cast<size_t>(ranks[i])] = slots[i];
      return;
    }
    std::map<int32_t, Part> by_unit;
    for (const int32_t slot : slots)
      by_unit[slots_.unit[boundary - 1][static_cast<size_t>(slot)]].slots.push_back(slot);
    std::vector<Part> parts;
    for (auto& [unit, part] : by_unit) parts.push_back(std::move(part));
    distribute(std::move(ranks), parts);
    for (Part& part : parts)
      if (!part.ranks.empty()) fill(boundary - 1, part.slots, std::move(part.ranks));
  }

  void distribute(std::vector<int32_t> ranks, std::vector<Part>& parts) const {
    std::deque<Block> left;
    for (Block& block : split({blocks_.size(), std::move(ranks)})) left.push_back(std::move(block));
    while (!left.empty()) {
      Block block = std::move(left.front());
      left.pop_front();
      if (Part* part = choose(block, parts)) {
        part->ranks.insert(part->ranks.end(), block.ranks.begin(), block.ranks.end());
        continue;
      }
      std::vector<Block> smaller = split(block);
      for (size_t i = smaller.size(); i-- > 0;) left.push_front(std::move(smaller[i]));
    }
  }

  // Into blocks of the next level in, the largest first.
  std::vector<Block> split(const Block& block) const {
    PIPER_CHECK(block.level > 0);
    std::map<int32_t, Block> by_label;
    for (const int32_t rank : block.ranks) {
      Block& part = by_label[blocks_[block.level - 1][static_cast<size_t>(rank)]];
      part.level = block.level - 1;
      part.ranks.push_back(rank);
    }
    std::vector<Block> parts;
    for (auto& [label, part] : by_label) parts.push_back(std::move(part));
    std::ranges::stable_sort(parts, std::greater(), [](const Block& b) { return b.ranks.size(); });
    return parts;
  }

  // How many of its ranks are of the block's block one level up, two levels up, ...
  std::vector<int64_t> kin(const Block& block, const Part& part) const {
    std::vector<int64_t> counts;
    if (rule_ == PackRule::kTight || rule_ == PackRule::kFirst) return counts;
    for (size_t level = block.level + 1; level < blocks_.size(); ++level) {
      const int32_t own = blocks_[level][static_cast<size_t>(block.ranks[0])];
      counts.push_back(std::ranges::count_if(part.ranks, [&](int32_t rank) {
        return blocks_[level][static_cast<size_t>(rank)] == own;
      }));
    }
    return counts;
  }

  int64_t num_nodes(const Part& part) const {
    std::set<int32_t> nodes;
    for (const int32_t slot : part.slots) nodes.insert(slots_.node[static_cast<size_t>(slot)]);
    return std::ssize(nodes);
  }

  Part* choose(const Block& block, std::vector<Part>& parts) const {
    Part* best = nullptr;
    std::vector<int64_t> best_key;
    for (Part& part : parts) {
      if (part.room() < block.ranks.size()) continue;
      std::vector<int64_t> key = kin(block, part);
      const auto room = static_cast<int64_t>(part.room());
      if (rule_ != PackRule::kFirst)
        key.insert(key.end(), {rule_ == PackRule::kTogetherRoomy ? room : -room, -num_nodes(part)});
      if (best != nullptr && key <= best_key) continue;
      best = &part;
      best_key = std::move(key);
    }
    return best;
  }

  const Slots& slots_;
  const std::vector<std::vector<int32_t>>& blocks_;
  PackRule rule_;
  RankSlots placement_;
};

}  // namespace

std::vector<std::vector<int32_t>> rank_blocks(std::span<const RankGroup> groups,
                                              int32_t num_ranks) {
  std::array<double, kNumAxes> bytes{};
  std::array<size_t, kNumAxes> order{};
  std::iota(order.begin(), order.end(), 0);
  for (const RankGroup& group : groups) bytes[static_cast<size_t>(group.axis)] += group.sent();
  std::ranges::stable_sort(order, std::greater(), [&](size_t axis) { return bytes[axis]; });
  Unions unions(num_ranks);
  std::vector<std::vector<int32_t>> levels(1, std::vector<int32_t>(static_cast<size_t>(num_ranks)));
  std::iota(levels[0].begin(), levels[0].end(), 0);
  for (const size_t axis : order) {
    for (const RankGroup& group : groups)
      if (static_cast<size_t>(group.axis) == axis)
        for (const int32_t rank : group.ranks) unions.join(group.ranks[0], rank);
    std::vector<int32_t> labels;
    for (int32_t rank = 0; rank < num_ranks; ++rank) labels.push_back(unions.root(rank));
    if (labels != levels.back()) levels.push_back(std::move(labels));
  }
  return levels;
}

RankSlots pack_ranks(const Slots& slots, const std::vector<std::vector<int32_t>>& blocks,
                     PackRule rule) {
  return Packer(slots, blocks, rule).pack();
}

}  // namespace piper::placement
