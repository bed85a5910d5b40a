#include <piper/collective/halo.h>
#include <piper/collective/unit_order.h>
#include <testing/collective/exchange_cases.h>

#include <map>
#include <set>

namespace piper::collective {
namespace {

// The rack of every unit, rack by rack.
std::vector<int32_t> racks_of(const std::vector<int64_t>& sizes) {
  std::vector<int32_t> rack;
  for (size_t r = 0; r < sizes.size(); ++r)
    rack.insert(rack.end(), static_cast<size_t>(sizes[r]), static_cast<int32_t>(r));
  return rack;
}

std::vector<int32_t> equal_racks(int64_t num, int64_t size) {
  return racks_of(std::vector<int64_t>(static_cast<size_t>(num), size));
}

// [step][unit]: whom it addresses, -1 for nobody.
std::vector<std::vector<int32_t>> table_of(const UnitOrder& order, int64_t num_units) {
  std::vector<std::vector<int32_t>> table(static_cast<size_t>(order.num_steps()),
                                          std::vector<int32_t>(static_cast<size_t>(num_units), -1));
  for (int32_t from = 0; from < num_units; ++from)
    for (int32_t to = 0; to < num_units; ++to) {
      if (from == to) continue;
      const int64_t step = order.step(from, to);
      REQUIRE(step >= 0);
      REQUIRE(step < order.num_steps());
      CHECK(table[static_cast<size_t>(step)][static_cast<size_t>(from)] == -1);
      table[static_cast<size_t>(step)][static_cast<size_t>(from)] = to;
    }
  return table;
}

bool is_permutation(const std::vector<int32_t>& targets) {
  return std::set<int32_t>(targets.begin(), targets.end()).size() == targets.size() &&
         std::ranges::min(targets) == 0;
}

// The most units of one rack that speak to the same other rack.
int64_t largest_bundle(const std::vector<int32_t>& targets, const std::vector<int32_t>& rack) {
  std::map<std::pair<int32_t, int32_t>, int64_t> bundles;
  int64_t most = 0;
  for (size_t from = 0; from < targets.size(); ++from) {
    if (targets[from] < 0) continue;
    const std::pair pair{rack[from], rack[static_cast<size_t>(targets[from])]};
    if (pair.first != pair.second) most = std::max(most, ++bundles[pair]);
  }
  return most;
}

int64_t largest_bundle(const UnitOrder& order, const std::vector<int32_t>& rack) {
  int64_t most = 0;
  for (const auto& targets : table_of(order, std::ssize(rack)))
    most = std::max(most, largest_bundle(targets, rack));
  return most;
}

void check_plain(const UnitOrder& order, int64_t num_units) {
  CHECK(order.num_steps() == num_units - 1);
  for (int64_t from = 0; from < num_units; ++from)
    for (int64_t distance = 1; distance < num_units; ++distance)
      CHECK(order.step(from, (from + distance) % num_units) == distance - 1);
}

TEST_CASE("units without racks, in one rack, or alone in theirs address the next one, and so on") {
  for (const int64_t n : {1, 2, 4, 7}) {
    check_plain(UnitOrder(n, {}), n);
    check_plain(UnitOrder(n, {equal_racks(1, n)}), n);
    check_plain(UnitOrder(n, {equal_racks(n, 1)}), n);
    check_plain(UnitOrder(n, {equal_racks(n, 1), equal_racks(1, n)}), n);
  }
  CHECK(UnitOrder(0, {}).num_steps() == 0);
}

TEST_CASE("in equal racks every step is a permutation that spreads a rack over the others") {
  for (const auto& [c, j] : std::vector<std::pair<int64_t, int64_t>>{
           {2, 2}, {2, 4}, {3, 2}, {3, 3}, {4, 16}, {5, 7}, {8, 4}, {8, 8}, {9, 8}, {16, 8}}) {
    CAPTURE(c);
    CAPTURE(j);
    const std::vector<int32_t> rack = equal_racks(c, j);
    const UnitOrder order(c * j, {rack});
    const auto table = table_of(order, c * j);
    REQUIRE(std::ssize(table) == c * j - 1);
    for (int64_t step = 0; step < c * j - 1; ++step) {
      CAPTURE(step);
      const auto& targets = table[static_cast<size_t>(step)];
      CHECK(is_permutation(targets));
      const int64_t others = step < c - 1 ? c - 1 : c;
      CHECK(largest_bundle(targets, rack) == (j + others - 1) / others);
    }
  }
}

TEST_CASE("the drawing: three racks of three, step (1, 1)") {
  const UnitOrder order(9, {equal_racks(3, 3)});
  // Two steps of b = 0, then a = 0, then this one.
  CHECK(table_of(order, 9)[3] == std::vector<int32_t>{4, 8, 0, 7, 2, 3, 1, 5, 6});
}

TEST_CASE("racks of switch groups: every step is a permutation that spreads over both") {
  // 4 racks of 4 switch groups of 4.
  const std::vector<int32_t> group = equal_racks(16, 4), rack = equal_racks(4, 16);
  const UnitOrder order(64, {group, rack});
  for (const auto& targets : table_of(order, 64)) CHECK(is_permutation(targets));
  CHECK(largest_bundle(order, rack) == 6);  // 16 units over 3 other racks
  // Inside of a rack links join switch groups: never more than one unit of a group on one of them,
  // but for the first steps of the inner order.
  int64_t most = 0;
  for (const auto& targets : table_of(order, 64)) {
    std::vector<int32_t> inside = targets;
    for (size_t from = 0; from < inside.size(); ++from)
      if (rack[from] != rack[static_cast<size_t>(inside[from])])
        inside[from] = static_cast<int32_t>(from);
    most = std::max(most, largest_bundle(inside, group));
  }
  CHECK(most == 1);
}

TEST_CASE("in racks filled unevenly every step is a permutation that spreads a rack, too") {
  struct Case {
    std::vector<int64_t> sizes;
    int64_t plain, most;
  };
  for (const auto& [sizes, plain, most] : std::vector<Case>{{{9, 8, 8, 8, 8, 8, 8, 7}, 8, 3},
                                                            {{13, 2, 7, 7, 3}, 7, 5},
                                                            {{7, 5, 6, 6}, 6, 4},
                                                            {{5, 8, 8, 8, 8, 8, 8, 8}, 8, 5}}) {
    const std::vector<int32_t> rack = racks_of(sizes);
    const int64_t n = std::ssize(rack);
    CAPTURE(to_text({sizes}));
    const UnitOrder order(n, {rack});
    CHECK(order.num_steps() == n - 1);
    for (const auto& targets : table_of(order, n)) CHECK(is_permutation(targets));
    CHECK(largest_bundle(UnitOrder(n, {}), rack) == plain);
    CHECK(largest_bundle(order, rack) <= most);
  }
}

void check_once_each(const UnitOrder& order, int64_t num_units) {
  for (int32_t unit = 0; unit < num_units; ++unit) {
    for (const bool is_target : {true, false}) {
      const std::vector<int32_t> others = is_target ? order.targets(unit) : order.sources(unit);
      CHECK(std::ssize(others) == num_units - 1);
      CHECK(std::set<int32_t>(others.begin(), others.end()).size() == others.size());
      CHECK(std::ranges::find(others, unit) == others.end());
      int64_t last = -1;
      for (const int32_t other : others) {
        const int64_t step = is_target ? order.step(unit, other) : order.step(other, unit);
        CHECK(step > last);
        last = step;
      }
    }
  }
}

TEST_CASE(
    "however racks are filled, every unit is addressed once by every other, by one at a step") {
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    std::vector<int64_t> sizes(1 + random() % 9);
    for (int64_t& size : sizes) size = 1 + random() % (1 + random() % 12);
    std::vector<int32_t> rack = racks_of(sizes);
    std::ranges::shuffle(rack, random);  // numbers of units do not follow the racks
    std::vector<int32_t> row;            // racks in rows of two
    for (const int32_t r : rack) row.push_back(r / 2);
    const int64_t n = std::ssize(rack);
    CAPTURE(to_text({sizes}));
    for (const UnitOrder& order : {UnitOrder(n, {rack}), UnitOrder(n, {rack, row})}) {
      check_once_each(order, n);
      for (const auto& targets : table_of(order, n)) CHECK(is_permutation(targets));
    }
  }
}

TEST_CASE("nodes address each other racks first, switch groups by the racks further out") {
  Topology topology = even_nodes(8, 2, 1, 2);  // 4 switch groups of 2 nodes
  CHECK(units_from(0, Units(topology, 0)) == UnitOrder(8, {equal_racks(4, 2)}).targets(0));
  CHECK(units_from(0, Units(topology, 1)) == std::vector<int32_t>{1, 2, 3});
  topology.unit.emplace_back();  // 2 racks of 2 switch groups
  for (const int32_t group : topology.unit[1]) topology.unit[2].push_back(group / 2);
  const Units groups(topology, 1);
  CHECK(units_from(0, groups) == std::vector<int32_t>{2, 1, 3});
  CHECK(units_from(4, groups) == std::vector<int32_t>{3, 2, 0});
  CHECK(units_towards(0, groups) == std::vector<int32_t>{2, 3, 1});
}

TEST_CASE("nodes of a switch group begin with different other groups, one member each with one") {
  const Topology topology = even_nodes(8, 2, 1, 2);  // 4 switch groups of 2 nodes
  const Units groups(topology, 1);
  CHECK(units_from(0, groups) == std::vector<int32_t>{1, 2, 3});
  CHECK(units_from(1, groups) == std::vector<int32_t>{1, 2, 3});
  CHECK(units_from(2, groups) == std::vector<int32_t>{2, 3, 1});
  CHECK(units_towards(2, groups) == std::vector<int32_t>{2, 1, 3});
  for (size_t position = 0; position < 3; ++position) {
    std::set<int32_t> reached;
    for (int64_t member = 0; member < 16; ++member)
      reached.insert(groups.counterpart(member, units_from(member, groups)[position]));
    CHECK(reached.size() == 16);
  }
}

}  // namespace
}  // namespace piper::collective
