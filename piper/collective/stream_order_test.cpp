#include <piper/base/error.h>
#include <piper/collective/algorithms.h>
#include <piper/collective/halo_dedup_combine.h>
#include <piper/collective/halo_dedup_dispatch.h>
#include <piper/collective/reductions.h>
#include <piper/collective/stream_order.h>
#include <testing/collective/dedup_cases.h>
#include <testing/collective/exchange_cases.h>
#include <testing/collective/stream_order_proof.h>

#include <limits>

namespace piper::collective {
namespace {

using Members = std::vector<MemberSteps>;

Members members_of(int64_t n, const StepsOf& steps) {
  Members members;
  for (int64_t m = 0; m < n; ++m) members.push_back(steps(m));
  return members;
}

std::vector<StreamOrder> orders_of(const Members& members) {
  std::vector<StreamOrder> orders;
  for (const MemberSteps& member : members) orders.push_back(stream_order(member));
  return orders;
}

std::string first_problem(const Members& members) {
  return first_of(problems(members, orders_of(members)));
}

int64_t most_groups(const Members& members) {
  int64_t most = 0;
  for (const MemberSteps& member : members) most = std::max(most, num_groups(stream_order(member)));
  return most;
}

// In the list of one member, then in the list of the other.
Members exchange(AllToAll algorithm, const Topology& topology, const CountTable& table,
                 const AllToAllOptions& options = {}) {
  return members_of(num_members(topology), [&](int64_t m) {
    return all_to_all(algorithm, m, topology, count_in(table), options);
  });
}

TEST_CASE("every exchange executes on streams: all topologies, even, uneven, empty, one hot pair") {
  uint32_t seed = 0;
  for (const AllToAll algorithm : strategy::kAllToAlls)
    for (const Topology& topology : small_topologies()) {
      const int64_t n = num_members(topology);
      CountTable hot = even_counts(n, 2);
      hot[0][n - 1] = 40;
      for (const CountTable& table : {even_counts(n, 3), uneven_counts(n, ++seed),
                                      uneven_counts(n, ++seed), even_counts(n, 0), hot})
        for (const int64_t chunk : {int64_t{1}, int64_t{6}, kUncut})
          for (const PhaseOne phase_one : {PhaseOne::kUnderTwo, PhaseOne::kUnderThree}) {
            CAPTURE(std::string(strategy::name(algorithm)));
            CAPTURE(to_text(topology));
            CAPTURE(to_text(table));
            CAPTURE(chunk);
            CHECK(first_problem(exchange(algorithm, topology, table, {chunk, 3, phase_one})) == "");
          }
    }
}

TEST_CASE("windows of any size execute on streams") {
  for (const Topology& topology : small_topologies())
    for (const int64_t window : {1, 2, 5}) {
      CAPTURE(to_text(topology));
      CAPTURE(window);
      const CountTable table = uneven_counts(num_members(topology), 17);
      CHECK(first_problem(exchange(AllToAll::kWindowed, topology, table, {.window = window})) ==
            "");
    }
}

TEST_CASE("deduplicated exchanges execute on streams, there and back") {
  uint32_t seed = 0;
  for (const Topology& topology : small_topologies())
    for (const int64_t k : {1, 2, 5})
      for (const int64_t pieces : {1, 3})
        for (const size_t level : {size_t{0}, topology.unit.size() - 1}) {
          const Units units(topology, level);
          const int64_t n = num_members(topology);
          const Routes routes = random_routes(n, k, ++seed);
          const Dedup dedup{.row_count = 4, .num_pieces = pieces, .level = level};
          CAPTURE(seed);
          CAPTURE(to_text(topology));
          for (const auto& algorithm : {halo_dedup_dispatch, halo_dedup_combine})
            CHECK(first_problem(members_of(n, [&](int64_t m) {
                    return algorithm(m, topology, known_to(m, routes, units, pieces), dedup);
                  })) == "");
        }
}

TEST_CASE("every reduction executes on streams") {
  for (const ReductionAlgorithm algorithm : kReductionAlgorithms)
    for (const auto& reduction : {reduce_scatter, all_gather, all_reduce})
      for (const Topology& topology : small_topologies())
        for (const int64_t count : {0, 1, 5, 64, 600'000}) {
          CAPTURE(std::string(name(algorithm)));
          CAPTURE(to_text(topology));
          CAPTURE(count);
          CHECK(first_problem(members_of(num_members(topology), [&](int64_t m) {
                  return reduction(algorithm, m, topology, count);
                })) == "");
        }
}

TEST_CASE("groups are as many as an algorithm has rounds") {
  const Topology topology = even_nodes(4, 4, 2, 2);
  const auto groups = [&](AllToAll algorithm, const AllToAllOptions& options = {}) {
    return most_groups(exchange(algorithm, topology, even_counts(16, 8), options));
  };
  CHECK(groups(AllToAll::kFlat) == 1);
  CHECK(groups(AllToAll::kNaive) == 1);
  CHECK(groups(AllToAll::kNodeAware) == 1);
  CHECK(groups(AllToAll::kPairwise) == 15);
  CHECK(groups(AllToAll::kWindowed, {.window = 4}) == 4);  // 15 sends
  CHECK(groups(AllToAll::kBruck) == 4);
  CHECK(groups(AllToAll::kTwoD) == 2);
  CHECK(groups(AllToAll::kLeader) == 3);
  CHECK(groups(AllToAll::kHaloPrinted) == 2);
  CHECK(groups(AllToAll::kThreeLevel) == 3);
  // There are as many groups as packets: each packet is handed on while the next one crosses, and
  // the last one is for the counterpart itself. Rows that are not cut into packets are not rotated,
  // and are handed on afterwards.
  CHECK(groups(AllToAll::kHalo) == 2);
  CHECK(groups(AllToAll::kHalo, {.chunk = 8}) == 4);
  CHECK(groups(AllToAll::kHalo, {.chunk = 4}) == 8);
  CHECK(groups(AllToAll::kHalo, {.phase_one = PhaseOne::kUnderThree}) == 3);
}

// Counts how many messages of a group cross nodes, and how many stay inside.
std::pair<int64_t, int64_t> crossing_and_inside(const MemberSteps& member, const StreamOrder& order,
                                                const Launch& group, const Units& nodes,
                                                int64_t number) {
  std::pair<int64_t, int64_t> found;
  for (int32_t k = group.first; k < group.first + group.count; ++k)
    ++(nodes.together(number, member.steps[order.steps[k]].peer) ? found.second : found.first);
  return found;
}

TEST_CASE("chunked HALO: a packet crosses in the group in which the one before is handed on") {
  const Topology topology = even_nodes(2, 4);
  const Units nodes(topology, 0);
  const Members members = exchange(AllToAll::kHalo, topology, even_counts(8, 8), {.chunk = 8});
  const StreamOrder order = stream_order(members[1]);
  std::vector<std::pair<int64_t, int64_t>> groups;
  for (const Launch& launch : order.launches)
    if (launch.lane == Lane::kMessages)
      groups.push_back(crossing_and_inside(members[1], order, launch, nodes, 1));
  // One packet out and one in; three peers of phase I each way, then a row handed on and received.
  CHECK(groups == std::vector<std::pair<int64_t, int64_t>>{{2, 6}, {2, 2}, {2, 2}, {2, 2}});
}

// receive 0 -> copy 1 -> send 2, and a copy 3 that nobody waits for.
MemberSteps relay() {
  const Block a{Buffer::kScratch, 0, 4}, b{Buffer::kScratch, 4, 4}, c{Buffer::kOutput, 0, 4};
  return {.steps{{.kind = StepKind::kReceive, .peer = 0, .target = a},
                 {.kind = StepKind::kCopy, .source = a, .target = b, .after{0}},
                 {.kind = StepKind::kSend, .peer = 2, .round = 5, .source = b, .after{1}},
                 {.kind = StepKind::kCopy, .source = a, .target = c, .after{0}}},
          .output_count = 4,
          .scratch_count = 8};
}

TEST_CASE("a message waits for the local steps it needs and for no others") {
  const StreamOrder order = stream_order(relay());
  CHECK(order.steps == std::vector<int32_t>{0, 1, 3, 2});
  REQUIRE(order.launches.size() == 4);
  CHECK(order.launches[0].waited_for);
  CHECK(order.launches[1].lane == Lane::kLocal);
  CHECK(order.launches[1].waits_for == 0);
  CHECK(order.launches[2].lane == Lane::kLocal);
  CHECK(order.launches[2].waits_for == -1);  // in its lane anyway
  CHECK(order.launches[3].lane == Lane::kMessages);
  CHECK(order.launches[3].waits_for == 1);
  CHECK_FALSE(order.launches[2].waited_for);
}

TEST_CASE("a round that is not greater than one it comes after is refused") {
  MemberSteps member = relay();
  member.steps[2].round = 0;
  CHECK_THROWS_AS(stream_order(member), InternalError);
}

// --- what the proof must notice

Members sound() {
  return exchange(AllToAll::kHalo, nodes_of({2, 3, 2}), uneven_counts(7, 4), {.chunk = 6});
}

// The same list, with one message in a round of its own behind all others.
MemberSteps with_late(const MemberSteps& member, size_t late) {
  MemberSteps result = member;
  result.steps[late].round = 1000;
  return result;
}

bool is_waited_for(const MemberSteps& member, size_t step) {
  for (const Step& other : member.steps)
    for (const int32_t before : other.after)
      if (before == static_cast<int32_t>(step)) return true;
  return false;
}

TEST_CASE("a message that is late at one end is noticed where its group has others for the peer") {
  const Members members = sound();
  int64_t num_noticed = 0;
  for (size_t m = 0; m < members.size(); ++m)
    for (size_t s = 0; s < members[m].steps.size(); ++s) {
      const Step& step = members[m].steps[s];
      if (!is_message(step) || is_waited_for(members[m], s)) continue;
      bool has_company = false;
      for (const Step& other : members[m].steps)
        has_company = has_company || (&other != &step && is_message(other) &&
                                      other.peer == step.peer && other.round == step.round);
      Members broken = members;
      broken[m] = with_late(members[m], s);
      CAPTURE(m);
      CAPTURE(s);
      if (has_company) CHECK(first_problem(broken) != "");
      num_noticed += first_problem(broken).empty() ? 0 : 1;
    }
  CHECK(num_noticed > 50);
}

TEST_CASE("two groups of one member in the wrong order are a circle") {
  const Members members =
      exchange(AllToAll::kPairwise, apart(4), even_counts(4, 1));  // three groups each
  std::vector<StreamOrder> orders = orders_of(members);
  REQUIRE(problems(members, orders).empty());
  Members broken = members;
  for (Step& step : broken[2].steps) {
    step.after.clear();
    if (is_message(step)) step.round = 4 - step.round;
  }
  orders[2] = stream_order(broken[2]);
  CHECK(first_of(problems(broken, orders)).find("for ever") != std::string::npos);
}

TEST_CASE("two messages of a pair that change places are noticed") {
  const Members members = sound();
  std::vector<StreamOrder> orders = orders_of(members);
  int64_t num_swapped = 0;
  for (size_t m = 0; m < members.size(); ++m)
    for (const Launch& launch : orders[m].launches)
      for (int32_t k = launch.first + 1; k < launch.first + launch.count; ++k) {
        const Step &a = members[m].steps[orders[m].steps[k - 1]],
                   &b = members[m].steps[orders[m].steps[k]];
        if (a.kind != b.kind || a.peer != b.peer || !is_message(a)) continue;
        std::vector<StreamOrder> broken = orders;
        std::swap(broken[m].steps[k - 1], broken[m].steps[k]);
        CHECK_FALSE(problems(members, broken).empty());
        ++num_swapped;
      }
  CHECK(num_swapped > 0);
}

TEST_CASE("every event is needed: without it a step does not wait for what it comes after") {
  for (const AllToAll algorithm : {AllToAll::kBruck, AllToAll::kTwoD, AllToAll::kHaloPrinted}) {
    const Members members =
        exchange(algorithm, nodes_of({2, 3, 2}), uneven_counts(7, 4), {.chunk = 6});
    const std::vector<StreamOrder> orders = orders_of(members);
    int64_t num_events = 0;
    for (size_t m = 0; m < members.size(); ++m)
      for (size_t i = 0; i < orders[m].launches.size(); ++i) {
        if (orders[m].launches[i].waits_for < 0) continue;
        std::vector<StreamOrder> broken = orders;
        broken[m].launches[i].waits_for = -1;
        CAPTURE(std::string(strategy::name(algorithm)));
        CAPTURE(m);
        CAPTURE(i);
        CHECK_FALSE(problems(members, broken).empty());
        ++num_events;
      }
    CHECK(num_events > 0);
  }
}

TEST_CASE("a step left out, issued twice or in the wrong lane is noticed") {
  const Members members = sound();
  const std::vector<StreamOrder> orders = orders_of(members);
  std::vector<StreamOrder> broken = orders;
  ++broken[1].launches[0].first;
  --broken[1].launches[0].count;
  CHECK_FALSE(problems(members, broken).empty());
  broken = orders;
  broken[1].steps[0] = broken[1].steps[1];
  CHECK_FALSE(problems(members, broken).empty());
  broken = orders;
  for (Launch& launch : broken[1].launches) launch.lane = Lane::kLocal;
  CHECK_FALSE(problems(members, broken).empty());
}

}  // namespace
}  // namespace piper::collective
