#include <piper/balance/replicate.h>
#include <piper/base/error.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace piper::balance {
namespace {

using Held = std::vector<std::vector<int32_t>>;

// One of a list of items that are packed.
struct Item {
  int32_t what = 0;
  double rows = 0;
};

bool holds(const std::vector<int32_t>& pack, int32_t what) {
  return std::ranges::find(pack, what) != pack.end();
}

// No pack has room for another `what` but those that hold one: a pack without it takes it, and
// gives something to one of those.
void exchange(Held& packs, std::vector<double>& sums, const Item& item, size_t each,
              const std::vector<double>& rows_of) {
  for (std::vector<int32_t>& with_room : packs) {
    if (with_room.size() == each) continue;
    for (std::vector<int32_t>& taker : packs) {
      if (holds(taker, item.what)) continue;
      for (int32_t& given : taker) {
        if (holds(with_room, given)) continue;
        const double rows = rows_of[static_cast<size_t>(given)];
        sums[static_cast<size_t>(&with_room - packs.data())] += rows;
        sums[static_cast<size_t>(&taker - packs.data())] += item.rows - rows;
        with_room.push_back(std::exchange(given, item.what));
        return;
      }
    }
  }
  PIPER_CHECK(false, "copies of an expert that no ranks can hold apart");
}

// Heaviest first to the lightest pack that has room and no equal; `each` items a pack.
Held pack(std::vector<Item> items, size_t num_packs, size_t each) {
  std::vector<double> rows_of;
  for (const Item& item : items) {
    rows_of.resize(std::max(rows_of.size(), static_cast<size_t>(item.what) + 1));
    rows_of[static_cast<size_t>(item.what)] = item.rows;
  }
  std::ranges::stable_sort(items, std::ranges::greater(), &Item::rows);
  Held packs(num_packs);
  std::vector<double> sums(num_packs);
  for (const Item& item : items) {
    size_t lightest = num_packs;
    for (size_t i = 0; i < num_packs; ++i)
      if (packs[i].size() < each && !holds(packs[i], item.what) &&
          (lightest == num_packs || sums[i] < sums[lightest]))
        lightest = i;
    if (lightest == num_packs) {
      exchange(packs, sums, item, each, rows_of);
      continue;
    }
    packs[lightest].push_back(item.what);
    sums[lightest] += item.rows;
  }
  return packs;
}

// `num_slots` copies of these experts, each at most `most` times.
std::vector<Item> copies_of(const std::vector<int32_t>& experts, const Loads& loads,
                            size_t num_slots, int64_t most) {
  std::vector<int64_t> copies(experts.size(), 1);
  std::vector<int32_t> slots(experts.size());
  std::iota(slots.begin(), slots.end(), 0);
  const auto rows = [&](size_t i) {
    return static_cast<double>(loads[static_cast<size_t>(experts[i])]) /
           static_cast<double>(copies[i]);
  };
  while (slots.size() < num_slots) {
    size_t heaviest = experts.size();
    for (size_t i = 0; i < experts.size(); ++i)
      if (copies[i] < most && (heaviest == experts.size() || rows(i) > rows(heaviest)))
        heaviest = i;
    ++copies[heaviest];
    slots.push_back(static_cast<int32_t>(heaviest));
  }
  std::vector<Item> items;
  for (const int32_t i : slots)
    items.push_back({experts[static_cast<size_t>(i)], rows(static_cast<size_t>(i))});
  return items;
}

// Returns the experts by node. With one node, or groups that the nodes do not divide, it returns a
// single list of all experts in their order.
Held experts_by_node(const Loads& loads, const RedundantSlots& slots) {
  const int64_t num_experts = std::ssize(loads);
  if (slots.num_nodes == 1 || slots.num_groups % slots.num_nodes != 0) {
    Held one(1);
    one[0].resize(loads.size());
    std::iota(one[0].begin(), one[0].end(), 0);
    return one;
  }
  const int64_t of_group = num_experts / slots.num_groups;
  std::vector<Item> groups;
  for (int64_t g = 0; g < slots.num_groups; ++g) {
    const auto begin = loads.begin() + g * of_group;
    groups.push_back({static_cast<int32_t>(g),
                      static_cast<double>(std::accumulate(begin, begin + of_group, int64_t{0}))});
  }
  Held nodes;
  for (const std::vector<int32_t>& held :
       pack(groups, static_cast<size_t>(slots.num_nodes),
            static_cast<size_t>(slots.num_groups / slots.num_nodes))) {
    std::vector<int32_t>& experts = nodes.emplace_back();
    for (const int32_t group : held)
      for (int64_t e = 0; e < of_group; ++e)
        experts.push_back(static_cast<int32_t>(group * of_group + e));
  }
  return nodes;
}

}  // namespace

ExpertPlacement replicate(const Loads& loads, const RedundantSlots& slots) {
  const int64_t num_experts = std::ssize(loads);
  PIPER_CHECK(slots.num_ranks % slots.num_nodes == 0 && num_experts % slots.num_groups == 0,
              "nodes divide the ranks, groups the experts");
  Held held;
  const Held nodes = experts_by_node(loads, slots);
  const int64_t ranks = slots.num_ranks / std::ssize(nodes);
  for (const std::vector<int32_t>& experts : nodes) {
    const int64_t num_slots = ranks * slots.slots_per_rank;
    PIPER_CHECK(num_slots >= std::ssize(experts) && slots.slots_per_rank <= std::ssize(experts),
                "a slot for every expert, and no two copies on a rank");
    for (std::vector<int32_t>& rank :
         pack(copies_of(experts, loads, static_cast<size_t>(num_slots), ranks),
              static_cast<size_t>(ranks), static_cast<size_t>(slots.slots_per_rank)))
      held.push_back(std::move(rank));
  }
  return {std::move(held), num_experts};
}

}  // namespace piper::balance
