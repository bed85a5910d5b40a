// What holds for every collective on every network.
#include <doctest/doctest.h>
#include <piper/collective/algorithms.h>
#include <testing/sim/example_flows.h>

#include <random>

namespace piper::sim {
namespace {

using Counts = std::vector<std::vector<int64_t>>;

Counts random_counts(std::mt19937& random, int64_t n) {
  Counts counts(static_cast<size_t>(n), std::vector<int64_t>(static_cast<size_t>(n)));
  for (auto& row : counts)
    for (int64_t& count : row)
      count = random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % 2000);
  return counts;
}

// Two to four nodes of one to four members, a tree of two levels above, all costs on or off.
Fabric random_fabric(std::mt19937& random) {
  const int64_t members = std::array{1, 2, 4}[random() % 3];
  const auto some = [&](double least, double most) {
    return least + (most - least) * static_cast<double>(random() % 1000) / 1000;
  };
  Fabric fabric =
      tree({.num_members = members,
            .num_nics = members == 1 ? 1 : members / static_cast<int64_t>(1 + random() % 2),
            .inner_bytes_per_second = some(50, 400),
            .nic_bytes_per_second = some(10, 100),
            .latency_seconds = some(0, 1)},
           {{.name = "switch",
             .num_units = 1 + static_cast<int64_t>(random() % 2),
             .latency_seconds = some(0, 2),
             .outside_bytes_per_second = some(20, 200)},
            {.name = "system",
             .num_units = 2,
             .latency_seconds = some(0, 3),
             .between_bytes_per_second = random() % 2 == 0 ? 0 : some(10, 100)}});
  if (random() % 2 == 0) fabric.costs.send_seconds = some(0, 0.5);
  if (random() % 2 == 0) fabric.costs.eager_bytes = static_cast<int64_t>(random() % 1000);
  fabric.costs.rendezvous =
      std::array{Rendezvous::kReady, Rendezvous::kGrant, Rendezvous::kOffer}[random() % 3];
  if (random() % 3 == 0) fabric.costs.packets_across = 4;
  if (random() % 3 == 0) fabric.costs.turns = Turns::kByPeer;
  if (random() % 3 == 0) fabric.costs.packet_bytes = 100;
  if (random() % 3 == 0) fabric.costs.receive_seconds = some(0, 0.2);
  fabric.costs.sends_end_at_arrival = random() % 3 == 0;
  if (fabric.costs.turns == Turns::kByPeer && random() % 2 == 0)
    fabric.costs.packets_on_ports = 1 + static_cast<int32_t>(random() % 3);
  return fabric;
}

FlowProgram program_of(strategy::AllToAll algorithm, const Fabric& fabric, const Counts& counts) {
  const collective::Topology topology = topology_of(fabric);
  return flow_program(fabric.num_members(), [&](int64_t member) {
    return collective::all_to_all(
        algorithm, member, topology,
        [&](int64_t from, int64_t to) {
          return counts[static_cast<size_t>(from)][static_cast<size_t>(to)];
        },
        {.chunk = 700});
  });
}

TEST_CASE("no collective is earlier than its busiest port, and bytes are neither lost nor made") {
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Fabric fabric = random_fabric(random);
    const Counts counts = random_counts(random, fabric.num_members());
    for (const strategy::AllToAll algorithm : strategy::kAllToAlls) {
      CAPTURE(strategy::name(algorithm));
      const FlowProgram program = program_of(algorithm, fabric, counts);
      const SimulatedFlows simulated = simulate_flows(program, fabric);
      CHECK(simulated.seconds >= limit_of(simulated, fabric).seconds * (1 - 1e-9));
      double sent = 0, crossed = 0;
      for (const FlowStep& step : program.steps())
        if (static_cast<FlowKind>(step.kind) == FlowKind::kSend)
          sent += static_cast<double>(step.units);
      for (const int32_t port : fabric.member_out)
        crossed += simulated.port_bytes[static_cast<size_t>(port)];
      std::vector<int32_t> cards = fabric.nic_out;
      std::ranges::sort(cards);
      cards.erase(std::unique(cards.begin(), cards.end()), cards.end());
      for (const int32_t port : cards) crossed += simulated.port_bytes[static_cast<size_t>(port)];
      CHECK(crossed == sent);
    }
  }
}

TEST_CASE("exchanges that move no byte twice are not earlier than the limit of any exchange") {
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Fabric fabric = random_fabric(random);
    Counts counts = random_counts(random, fabric.num_members());
    for (auto& row : counts)
      for (int64_t& count : row) ++count;  // a latency is due to everyone
    const double limit = exchange_limit(fabric, [&](int64_t from, int64_t to) {
                           return counts[static_cast<size_t>(from)][static_cast<size_t>(to)];
                         }).seconds;
    for (const auto algorithm : {strategy::AllToAll::kNaive, strategy::AllToAll::kPairwise,
                                 strategy::AllToAll::kNodeAware, strategy::AllToAll::kWindowed})
      CHECK(simulate_flows(program_of(algorithm, fabric, counts), fabric).seconds >=
            limit * (1 - 1e-9));
  }
}

TEST_CASE("a uniform flat exchange over equal NICs is at its limit but for one message") {
  const Fabric fabric = example::nodes(4, 2, 2);
  const double limit = exchange_limit(fabric, [](int64_t, int64_t) { return 100; }).seconds;
  CHECK(limit == 6 * 100 / 10.0);
  const FlowProgram program =
      program_of(strategy::AllToAll::kNodeAware, fabric, Counts(8, std::vector<int64_t>(8, 100)));
  CHECK(simulate_flows(program, fabric).seconds == limit);
}

// Racks of nodes with a link for each pair of racks, a little narrower than what their NICs have
// for it: as on Frontier with minimal routing.
Fabric racks_in_pairs(int64_t num_racks, int64_t nodes) {
  const int64_t members = 2;
  const auto num_nodes = static_cast<double>(num_racks * nodes);
  const double card = 10, node = 2 * card;
  return tree({.num_members = members,
               .num_nics = 2,
               .inner_bytes_per_second = 1000,
               .nic_bytes_per_second = card},
              {{.name = "rack", .num_units = nodes},
               {.name = "system",
                .num_units = num_racks,
                .between_bytes_per_second =
                    0.95 * node * static_cast<double>(nodes * nodes) / (num_nodes - 1)}});
}

TEST_CASE("with a link for each pair of racks exchanges are at the limit, since racks come first") {
  for (const auto& [racks, nodes] : {std::pair{8, 8}, {4, 4}, {8, 4}, {4, 8}}) {
    const Fabric fabric = racks_in_pairs(racks, nodes);
    const double limit = exchange_limit(fabric, [](int64_t, int64_t) { return 100; }).seconds;
    const auto n = static_cast<size_t>(fabric.num_members());
    for (const auto algorithm :
         {strategy::AllToAll::kNodeAware, strategy::AllToAll::kWindowed, strategy::AllToAll::kHalo,
          strategy::AllToAll::kHaloPrinted, strategy::AllToAll::kTwoD}) {
      CAPTURE(racks);
      CAPTURE(nodes);
      CAPTURE(std::string(strategy::name(algorithm)));
      const FlowProgram program =
          program_of(algorithm, fabric, Counts(n, std::vector<int64_t>(n, 100)));
      CHECK(simulate_flows(program, fabric).seconds <= 1.05 * limit);
    }
  }
}

TEST_CASE("the limit names the port or the member that is busy longest") {
  Fabric fabric = example::nodes(3, 1, 1);
  fabric.bytes_per_second[static_cast<size_t>(fabric.nic_in[1])] = 5;
  const auto members = example::uniform(3, 100);
  CHECK(name_of(limit_of(example::simulate(members, fabric), fabric), fabric) ==
        "NIC 0 of node 1, in");
  fabric.costs.send_seconds = 1000;
  CHECK(name_of(limit_of(example::simulate(members, fabric), fabric), fabric) ==
        "start-ups of member 0");
}

// Without fixed times the order of events stays, and time halves exactly. With them who comes first
// at a port can change: no law, but what these cases do.
TEST_CASE("a network that is faster everywhere is never slower") {
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Fabric fabric = random_fabric(random);
    const Counts counts = random_counts(random, fabric.num_members());
    const FlowProgram program = program_of(strategy::AllToAll::kNodeAware, fabric, counts);
    const double before = simulate_flows(program, fabric).seconds;
    for (double& rate : fabric.bytes_per_second) rate *= 2;
    const double after = simulate_flows(program, fabric).seconds;
    CHECK(after <= before * (1 + 1e-9));
    CHECK(after >= before / 2 * (1 - 1e-6));
  }
}

// First come, first served has anomalies: a port that gets faster changes who comes first
// elsewhere. How often (1 of these 200), and by how much at worst (18 %), is held here so that it
// does not grow unnoticed.
TEST_CASE("one faster port seldom makes an exchange slower") {
  int slower = 0, tried = 0;
  double worst = 1;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    Fabric fabric = random_fabric(random);
    const Counts counts = random_counts(random, fabric.num_members());
    const FlowProgram program = program_of(strategy::AllToAll::kNodeAware, fabric, counts);
    const double before = simulate_flows(program, fabric).seconds;
    fabric.bytes_per_second[random() % fabric.bytes_per_second.size()] *= 2;
    const double ratio = simulate_flows(program, fabric).seconds / before;
    slower += ratio > 1 + 1e-9 ? 1 : 0;
    worst = std::max(worst, ratio);
    ++tried;
  }
  MESSAGE("slower " << slower << " of " << tried << ", at worst " << worst);
  CHECK(slower <= tried / 50);
  CHECK(worst < 1.25);
}

}  // namespace
}  // namespace piper::sim
