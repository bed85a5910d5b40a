#include <doctest/doctest.h>
#include <piper/cost/links.h>
#include <piper/cost/prices.h>
#include <testing/cost/example_model.h>
#include <testing/cost/relative_approx.h>

#include <map>

namespace piper::cost {
namespace {

// Units needed, by port.
std::map<int32_t, double> needs(const Transfer& transfer) {
  std::map<int32_t, double> parts;
  for (const PortNeed& need : transfer.needs)
    parts[need.port] = static_cast<double>(need.units) / static_cast<double>(kWholeShare);
  return parts;
}

std::vector<char> all(size_t world) { return std::vector<char>(world, 1); }

}  // namespace

// Nodes of 4 devices with 2 NICs, 2 nodes a group, 2 groups: 16 devices. Ports: 32 of devices,
// then (each NIC serves 2 devices) 16 of nodes, then 4 of groups.
TEST_CASE("ports: a device's own, one a NIC, one an uplink of a switch group") {
  const cluster::Cluster cluster = example::nodes();
  const Ports ports(cluster, all(16));
  REQUIRE(ports.capacity().size() == 32 + 16 + 4);
  CHECK(ports.capacity()[0] == kWholeShare);
  CHECK(ports.capacity()[32] == 2 * kWholeShare);
  CHECK(ports.capacity()[48] == 8 * kWholeShare);
  // Device 5 to device 14, in the other group: 5 GB/s of the NIC (10 / 2), 2 GB/s of the uplink.
  const Transfer far = ports.message(Rank(5), Rank(14), 2e9);
  CHECK(far.seconds == near(1));
  const std::map<int32_t, double> parts = needs(far);
  CHECK(parts.at(48) == near(1));                              // out of group 0
  CHECK(parts.at(51) == near(1));                              // into group 1
  CHECK(parts.at(32 + 2 * 2) == near(0.4).epsilon(1e-6));      // out of the NIC of devices 4 and 5
  CHECK(parts.at(32 + 2 * 7 + 1) == near(0.4).epsilon(1e-6));  // into that of 14 and 15
  CHECK(parts.size() == 4);
}

TEST_CASE("alone no operation needs more than a port has, and it moves no longer than it takes") {
  const cluster::Cluster cluster = example::nodes();
  const Ports ports(cluster, all(16));
  for (const Group& group :
       {Group{0, 1, 16}, {0, 1, 4}, {0, 4, 4}, {3, 1, 7}, {0, 8, 2}, {0, 1, 8, 2, 4}})
    for (const double bytes : {1.0, 1e4, 1e9}) {
      CAPTURE(group.first);
      CAPTURE(group.stride);
      CAPTURE(group.size);
      for (const auto& [transfer, seconds] :
           {std::pair{ports.all_to_all(group, bytes), all_to_all_seconds(cluster, group, bytes)},
            {ports.all_reduce(group, bytes), all_reduce_seconds(cluster, group, bytes)}}) {
        CHECK(transfer.seconds <= seconds);
        if (bytes == 1e9) CHECK(transfer.seconds > 0.3 * seconds);
        REQUIRE(!transfer.needs.empty());
        PortUnits most = 0;
        for (const PortNeed& need : transfer.needs) {
          CHECK(need.units <= ports.capacity()[static_cast<size_t>(need.port)]);
          most = std::max(most, need.units);
        }
        CHECK(most >= kWholeShare - 1);  // the port that decides is used in full
      }
    }
}

TEST_CASE("uneven rows load the sender's way out and the receiver's way in") {
  const cluster::Cluster cluster = example::nodes();
  const Ports ports(cluster, all(16));
  const std::vector<Rank> members{Rank(0), Rank(1)};
  const Transfer transfer = ports.all_to_all(members, std::vector<double>{9, 4e9, 1e9, 9});
  const std::map<int32_t, double> parts = needs(transfer);
  CHECK(transfer.seconds == near(0.04));
  CHECK(parts.at(0) == near(1));     // device 0 out
  CHECK(parts.at(1) == near(0.25));  // in
  CHECK(parts.at(2) == near(0.25));
  CHECK(parts.at(3) == near(1));
}

TEST_CASE("a hot rank uses what its neighbour leaves of their NIC, and no more than the NIC has") {
  const cluster::Cluster cluster = example::nodes();
  std::vector<Rank> members;
  for (int64_t i = 0; i < 8; ++i) members.emplace_back(i);
  std::vector<double> bytes(64, 0.0);
  for (size_t from = 0; from < 4; ++from) bytes[from * 8 + 4] = 2e6;
  const Transfer whole = Ports(cluster, all(16)).all_to_all(members, bytes);
  CHECK(whole.seconds == near(800e-6));
  CHECK(needs(whole).at(32 + 2 * 2 + 1) == near(2));  // into the NIC of devices 4 and 5
  CHECK(needs(whole).at(32) == near(1));              // out of that of 0 and 1: 4 MB
  // Where only one of the two is here the port is as much smaller, and is all that it gets.
  std::vector<char> one_of_two(16, 0);
  for (size_t rank = 0; rank < 16; rank += 2) one_of_two[rank] = 1;
  CHECK(needs(Ports(cluster, one_of_two).all_to_all(members, bytes)).at(32 + 2 * 2 + 1) == near(1));
  // Nothing to send.
  CHECK(Ports(cluster, all(16)).all_to_all(members, std::vector<double>(64, 0.0)).needs.empty());
}

TEST_CASE("a rank that stands for others has their part of a shared port") {
  std::vector<char> one_of_two(16, 0);
  for (size_t rank = 0; rank < 16; rank += 2) one_of_two[rank] = 1;
  const cluster::Cluster cluster = example::nodes();
  const Ports ports(cluster, one_of_two);
  CHECK(ports.capacity()[0] == kWholeShare);
  CHECK(ports.capacity()[32] == kWholeShare);
  CHECK(ports.capacity()[48] == 4 * kWholeShare);
}

TEST_CASE("what is all latency shares nothing") {
  const model::Model model = example::mixture(2);
  const strategy::Strategy s = example::strategy(model, 1, 4, 4, 1);
  const schedule::StepGraph step = schedule::write_step(model, s);
  const Prices prices = price(step, model, s, example::nodes());
  int64_t sharing = 0;
  for (const graph::Task& task : step.graph.tasks()) {
    if (!task.operation.valid()) continue;
    const bool shares = prices.links.pattern[task.operation.index()] >= 0;
    sharing += shares;
    if (task.kind == graph::TaskKind::kExchangeCounts) CHECK(!shares);
    if (shares)
      CHECK(prices.links.transfer_seconds[task.operation.index()] <=
            prices.seconds[task.id.index()]);
  }
  CHECK(sharing > 0);
}

}  // namespace piper::cost
