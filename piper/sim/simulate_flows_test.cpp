// Messages on ports of round rates: every figure can be computed in the head.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <testing/sim/example_flows.h>

namespace piper::sim {
namespace {

using collective::MemberSteps;
using collective::StepKind;
using example::nodes;
using example::posted_at_once;
using example::simulate;

TEST_CASE("one message takes start-up, latency and its bytes at the slowest port") {
  Fabric fabric = nodes(2, 1, 1);
  fabric.levels[1].latency_seconds = 3;
  fabric.costs.send_seconds = 2;
  CHECK(simulate(posted_at_once(2, {{0, 1, 50}}), fabric).seconds == 2 + 3 + 50 / 10.0);
  CHECK(simulate(posted_at_once(2, {{0, 1, 0}}), fabric).seconds == 2 + 3);
  // The NIC of node 1 half as fast: 50 / 5. Cut-through: not 50 / 10 + 50 / 5.
  fabric.bytes_per_second[static_cast<size_t>(fabric.nic_in[1])] = 5;
  CHECK(simulate(posted_at_once(2, {{0, 1, 50}}), fabric).seconds == 2 + 3 + 50 / 5.0);
}

TEST_CASE("links so slow that an exchange takes centuries are counted in longer ticks") {
  const Fabric fabric = nodes(2, 1, 1);  // 10 bytes a second
  const double bytes = 1LL << 35;
  CHECK(simulate(posted_at_once(2, {{0, 1, 1LL << 35}, {1, 0, 1LL << 35}}), fabric).seconds ==
        doctest::Approx(bytes / 10));
}

TEST_CASE("what a port takes for a message comes on top of its bytes, for each packet again") {
  Fabric fabric = nodes(2, 2, 1);
  fabric.message_seconds[static_cast<size_t>(fabric.nic_out[0])] = 1;
  const std::vector<MemberSteps> steps = posted_at_once(4, {{0, 2, 50}, {1, 3, 50}, {0, 1, 100}});
  CHECK(simulate(steps, fabric).seconds == 2 * (1 + 50 / 10.0));
  fabric.costs.packet_bytes = 10;
  CHECK(simulate(steps, fabric).seconds == 10 * (1 + 10 / 10.0));
  fabric.message_seconds[0] = -1;
  CHECK_THROWS_AS(simulate(steps, fabric), InvalidInput);
}

// Four members on a node each and no time but start-ups and arrivals.
TEST_CASE("members that share a processor start their messages one member after another") {
  const std::vector<MemberSteps> steps =
      posted_at_once(4, {{0, 2, 0}, {0, 3, 0}, {1, 2, 0}, {1, 3, 0}});
  Fabric fabric = nodes(4, 1, 1);
  fabric.costs.send_seconds = 2;
  SimulationOptions options;
  options.record_intervals = true;
  const auto arrivals = [&] {  // of 2 from 0 and 1, of 3 from 0 and 1
    const SimulatedFlows simulated = simulate(steps, fabric, options);
    std::vector<double> ends;
    for (size_t i = 4; i < simulated.intervals.size(); ++i)
      ends.push_back(simulated.intervals[i].end_seconds);
    return ends;
  };
  CHECK(arrivals() == std::vector<double>{2, 2, 4, 4});
  fabric.processor = {0, 0, 1, 1};
  CHECK(arrivals() == std::vector<double>{2, 6, 4, 8});
  fabric.costs.receive_seconds = 1;  // on the others' processor
  CHECK(arrivals() == std::vector<double>{3, 7, 5, 9});
  fabric.processor = {0, 0, 0, 0};  // what arrives comes between what starts
  CHECK(simulate(steps, fabric).seconds == 4 * 2 + 4 * 1);
}

TEST_CASE("processors are refused that do not cover the members") {
  Fabric fabric = nodes(2, 1, 1);
  const std::vector<MemberSteps> steps = posted_at_once(2, {{0, 1, 50}});
  fabric.processor = {0};
  CHECK_THROWS_AS(simulate(steps, fabric), InvalidInput);
  fabric.processor = {0, -1};
  CHECK_THROWS_AS(simulate(steps, fabric), InvalidInput);
}

TEST_CASE("inside a node a message crosses the inner ports, between nodes the NICs") {
  const Fabric fabric = nodes(2, 2, 1);
  const SimulatedFlows inner = simulate(posted_at_once(4, {{0, 1, 100}}), fabric);
  CHECK(inner.seconds == 1);
  CHECK(inner.port_bytes[static_cast<size_t>(fabric.member_out[0])] == 100);
  CHECK(inner.port_bytes[static_cast<size_t>(fabric.nic_out[0])] == 0);
  const SimulatedFlows outer = simulate(posted_at_once(4, {{0, 2, 100}}), fabric);
  CHECK(outer.seconds == 10);
  CHECK(outer.port_bytes[static_cast<size_t>(fabric.member_out[0])] == 0);
  CHECK(outer.port_bytes[static_cast<size_t>(fabric.nic_out[0])] == 100);
  CHECK(outer.port_bytes[static_cast<size_t>(fabric.nic_in[2])] == 100);
}

TEST_CASE("two that share a NIC take twice as long, with a NIC each they do not") {
  const std::vector<MemberSteps> steps = posted_at_once(4, {{0, 2, 50}, {1, 3, 50}});
  CHECK(simulate(steps, nodes(2, 2, 1)).seconds == 10);
  CHECK(simulate(steps, nodes(2, 2, 2)).seconds == 5);
}

// Two streams to one receiver from two nodes: the receiver's NIC moves all the time, the senders'
// NICs are free as soon as their own bytes are out.
TEST_CASE("a hot receiver is as slow as its own port, and a sender to it can go on") {
  const Fabric fabric = nodes(4, 1, 1);
  const SimulatedFlows simulated =
      simulate(posted_at_once(4, {{0, 3, 50}, {1, 3, 50}, {1, 2, 50}}), fabric);
  CHECK(simulated.member_seconds[3] == 10);  // 100 bytes at 10
  CHECK(simulated.member_seconds[2] ==
        10);  // from 5 on, when member 1's NIC is free: not from 10 on
  CHECK(simulated.seconds == 10);
}

// The test of work conservation: in and out are never held together. 0 -> 1 and 2 -> 1 want member
// 1, 0 -> 3 and 2 -> 3 want member 3. A reservation of both ends at once would leave gaps.
TEST_CASE("queues of in and out are independent: nothing waits while a port has work") {
  const Fabric fabric = nodes(1, 4, 1);
  const SimulatedFlows simulated =
      simulate(posted_at_once(4, {{0, 1, 100}, {2, 1, 100}, {0, 3, 100}, {2, 3, 100}}), fabric);
  // Out ports send 0..1 to member 1 and 1..2 to member 3; the in port of member 1 gets both at 0:
  // 2 seconds. That of member 3 gets both at 1: until 3.
  CHECK(simulated.member_seconds[1] == 2);
  CHECK(simulated.member_seconds[3] == 3);
}

TEST_CASE("a uniform flat exchange keeps the ports busy from begin to end") {
  for (const int64_t n : {2, 3, 4, 7, 8}) {
    CAPTURE(n);
    // One node: n-1 messages of 100 bytes at 100 bytes/s, in rotated order: no two collide.
    CHECK(simulate(example::uniform(n, 100), nodes(1, n, 1)).seconds == static_cast<double>(n - 1));
    CHECK(simulate(example::uniform(n, 100), nodes(n, 1, 1)).seconds ==
          10 * static_cast<double>(n - 1));
  }
}

TEST_CASE("a fast port behind slow ones serves them all at once, but for a packet's time") {
  // Four NICs of 10 bytes/s below a switch whose uplink carries 40.
  const FatTreeShape shape{.node = {.num_members = 2,
                                    .num_nics = 2,
                                    .inner_bytes_per_second = 100,
                                    .nic_bytes_per_second = 10},
                           .nodes_per_leaf = 2,
                           .num_leaves = 2};
  const std::vector<MemberSteps> across =
      posted_at_once(8, {{0, 4, 100}, {1, 5, 100}, {2, 6, 100}, {3, 7, 100}});
  Fabric fabric = fat_tree(shape);
  CHECK(simulate(across, fabric).seconds == 10 + 3 * 100 / 40.0);  // whole: one after another
  fabric.costs.packets_across = 20;
  CHECK(simulate(across, fabric).seconds == 10 + 3 * 5 / 40.0);
  FatTreeShape narrow = shape;
  narrow.oversubscription = 4;
  fabric = fat_tree(narrow);
  fabric.costs.packets_across = 20;
  // 400 bytes at 10; the last packet then crosses the last NIC, which is as slow.
  CHECK(simulate(across, fabric).seconds == 40);
}

TEST_CASE("start-ups of one member come one after another, those of several do not wait") {
  Fabric fabric = nodes(1, 3, 1);
  fabric.costs.send_seconds = 1;
  CHECK(simulate(posted_at_once(3, {{0, 1, 0}, {0, 2, 0}, {0, 1, 0}}), fabric).seconds == 3);
  CHECK(simulate(posted_at_once(3, {{0, 1, 0}, {1, 2, 0}, {2, 0, 0}}), fabric).seconds == 1);
  fabric.costs.receive_seconds = 0.5;  // two arrive at 1 together
  CHECK(simulate(posted_at_once(3, {{0, 2, 0}, {1, 2, 0}}), fabric).seconds == 2);
}

TEST_CASE("copies and additions take their turn at the memory of their member") {
  Fabric fabric = nodes(1, 1, 1);
  fabric.costs.local_seconds = 1;
  fabric.costs.local_bytes_per_second = 10;
  MemberSteps member;
  member.steps.push_back(
      {.kind = StepKind::kCopy, .source = {.count = 20}, .target = {.count = 20}});
  member.steps.push_back(
      {.kind = StepKind::kAdd, .source = {.count = 20}, .target = {.count = 20}});
  // Read and write 40 bytes, read two and write one: 60 bytes.
  CHECK(simulate({member}, fabric).seconds == 1 + 4 + 6);  // started together
  member.steps[1].after = {0};
  CHECK(simulate({member}, fabric).seconds == 1 + 4 + 1 + 6);
  // Three rows of 5 units, picked: 30 bytes. And a meeting of steps, which costs nothing.
  member.row_count = 5;
  member.steps[1] = {.kind = StepKind::kCopyRows, .num_rows = 3};
  member.steps.push_back({.kind = StepKind::kCopy, .after = {0, 1}});
  CHECK(simulate({member}, fabric).seconds == 1 + 4 + 3);
}

TEST_CASE("a step waits for all steps before it, and counts are in the caller's units") {
  Fabric fabric = nodes(1, 2, 1);
  fabric.costs.send_seconds = 1;
  std::vector<MemberSteps> members = posted_at_once(2, {{0, 1, 100}, {1, 0, 100}});
  // Member 1 answers when it has heard: its send is its second step.
  members[1].steps[1].after = {0};
  CHECK(simulate(members, fabric).seconds == 2 * (1 + 1));
  CHECK(simulate(members, fabric, {.bytes_per_unit = 3}).seconds == 2 * (1 + 3));
}

TEST_CASE("above the eager size a message waits for its receive, and pays for the agreement") {
  Fabric fabric = nodes(2, 1, 1);
  fabric.levels[1].latency_seconds = 4;
  fabric.costs.local_seconds = 7;
  // Member 1 copies for 7 seconds before it posts its receive.
  std::vector<MemberSteps> members = posted_at_once(2, {{0, 1, 10}});
  members[1].steps.insert(members[1].steps.begin(),
                          collective::Step{.kind = StepKind::kCopy, .target = {.count = 1}});
  members[1].steps[1].after = {0};
  CHECK(simulate(members, fabric).seconds == 7);  // there at 5: eager
  fabric.costs.eager_bytes = 9;
  CHECK(simulate(members, fabric).seconds == 7 + 4 + 1);
  fabric.costs.rendezvous = Rendezvous::kGrant;
  CHECK(simulate(members, fabric).seconds == 7 + 4 + 4 + 1);
  fabric.costs.rendezvous = Rendezvous::kOffer;
  CHECK(simulate(members, fabric).seconds == 7 + 4 + 4 + 1);  // the offer was there at 4
  CHECK(simulate(posted_at_once(2, {{0, 1, 10}}), fabric).seconds == 4 + 4 + 4 + 1);
  fabric.costs.rendezvous = Rendezvous::kGrant;
  CHECK(simulate(posted_at_once(2, {{0, 1, 10}}), fabric).seconds == 4 + 4 + 1);
  fabric.costs.eager_bytes = 10;
  CHECK(simulate(posted_at_once(2, {{0, 1, 10}}), fabric).seconds == 4 + 1);
}

TEST_CASE("a send whose bytes are kept elsewhere is done when it has started, if it is eager") {
  Fabric fabric = nodes(2, 1, 1);
  fabric.costs.send_seconds = 2;
  fabric.costs.local_seconds = 7;
  std::vector<MemberSteps> members = posted_at_once(2, {{0, 1, 10}});
  members[0].steps.push_back({.kind = StepKind::kCopy, .target = {.count = 1}, .after = {0}});
  for (const Turns turns : {Turns::kInOrder, Turns::kByPeer}) {
    fabric.costs.turns = turns;
    fabric.costs.eager_bytes = 10;
    fabric.costs.eager_is_copied = false;
    CHECK(simulate(members, fabric).seconds == 2 + 1 + 7);
    fabric.costs.eager_is_copied = true;
    CHECK(simulate(members, fabric).seconds == 2 + 7);
    fabric.costs.eager_bytes = 9;
    CHECK(simulate(members, fabric).seconds == 2 + 1 + 7);
  }
}

TEST_CASE("a send is done when its message has come, where that is what it waits for") {
  Fabric fabric = nodes(2, 1, 1);
  fabric.levels[1].latency_seconds = 3;
  fabric.costs.local_seconds = 7;
  std::vector<MemberSteps> members = posted_at_once(2, {{0, 1, 10}, {0, 1, 10}});
  members[0].steps[1].after = {0};
  members[0].steps.push_back({.kind = StepKind::kCopy, .target = {.count = 1}, .after = {1}});
  for (const Turns turns : {Turns::kInOrder, Turns::kByPeer}) {
    fabric.costs.turns = turns;
    fabric.costs.sends_end_at_arrival = false;
    CHECK(simulate(members, fabric).seconds == 1 + 1 + 7);
    fabric.costs.sends_end_at_arrival = true;
    CHECK(simulate(members, fabric).seconds == 2 * (1 + 3) + 7);
    // The same holds where no step waits for a message.
    CHECK(simulate(posted_at_once(2, {{0, 1, 10}}), fabric).member_seconds[0] == 1 + 3);
  }
}

// Members 0 and 1 send to member 2: NICs of 20 bytes/s meet at one of 10. 80 bytes leave at 0, 40
// at 2, when 20 of the 80 are through.
//   queues without end   20 of the 80 wait at the NIC by 2, then both put in 20 bytes a second: at 4
//                        100 bytes are in its queue, the two messages in turn, and both end at 12
//   a packet at a time   from 2 on each has 5 bytes a second: the 40 end at 2 + 40 / 5, the 80 at 12
TEST_CASE("with few packets on ports a later message shares what it meets") {
  Fabric fabric = nodes(3, 1, 1);
  for (const size_t m : {0, 1})
    fabric.bytes_per_second[static_cast<size_t>(fabric.nic_out[m])] = 20;
  fabric.levels[1].latency_seconds = 3;
  fabric.costs.local_seconds = 2;
  fabric.costs.turns = Turns::kByPeer;
  fabric.costs.packet_bytes = 1;
  std::vector<MemberSteps> members = posted_at_once(3, {{0, 2, 80}, {1, 2, 40}});
  members[1].steps.insert(members[1].steps.begin(),
                          {.kind = StepKind::kCopy, .target = {.count = 1}});
  members[1].steps[1].after = {0};
  const auto ends = [&] {
    const SimulatedFlows simulated = simulate(members, fabric, {.record_intervals = true});
    return std::pair{simulated.intervals[3].end_seconds - 3,
                     simulated.intervals[4].end_seconds - 3};
  };
  const auto is_near = [](double seconds) { return doctest::Approx(seconds).epsilon(0.02); };
  CHECK(ends().first == is_near(12));
  CHECK(ends().second == is_near(12));
  for (const int32_t packets : {1, 2}) {
    fabric.costs.packets_on_ports = packets;
    CHECK(ends().first == is_near(12));
    CHECK(ends().second == is_near(10));
  }
}

TEST_CASE("few packets on ports: messages of a pair follow each other at the full rate") {
  Fabric fabric = nodes(2, 1, 1);
  fabric.levels[1].latency_seconds = 3;
  fabric.costs.turns = Turns::kByPeer;
  fabric.costs.packet_bytes = 10;
  fabric.costs.packets_on_ports = 1;
  fabric.costs.local_seconds = 2;
  std::vector<MemberSteps> members =
      posted_at_once(2, {{0, 1, 50}, {0, 1, 0}, {0, 1, 35}, {0, 1, 20}});
  CHECK(simulate(members, fabric).seconds == 10.5 + 3);
  // One that is sent when the last packet of another has left and not come, behind a slower NIC.
  fabric.bytes_per_second[static_cast<size_t>(fabric.nic_in[1])] = 1;
  members[0].steps.resize(2);
  members[1].steps.resize(2);
  members[0].steps[1].after = {0};
  CHECK(simulate(members, fabric).seconds == 50 + 3);
  fabric.costs.turns = Turns::kInOrder;
  CHECK_THROWS_AS(simulate(members, fabric), InvalidInput);
  fabric.costs.turns = Turns::kByPeer;
  fabric.costs.packets_on_ports = -1;
  CHECK_THROWS_AS(simulate(members, fabric), InvalidInput);
}

TEST_CASE("no more messages of a member are on the way than allowed") {
  Fabric fabric = nodes(1, 4, 1);
  fabric.levels[0].latency_seconds = 5;
  const auto steps = posted_at_once(4, {{0, 1, 100}, {0, 2, 100}, {0, 3, 100}});
  CHECK(simulate(steps, fabric).seconds == 5 + 3);
  fabric.costs.max_in_flight = 2;
  CHECK(simulate(steps, fabric).seconds == 6 + 5 + 1);  // the first is there at 6
  fabric.costs.max_in_flight = 1;
  CHECK(simulate(steps, fabric).seconds == 3 * (5 + 1));
}

TEST_CASE("in packets two messages alternate where they meet") {
  // Two messages of 80 bytes from members with NICs of their own meet at the NIC of node 2.
  Fabric fabric = nodes(3, 2, 2);
  const auto steps = posted_at_once(6, {{0, 4, 80}, {2, 4, 20}});
  CHECK(simulate(steps, fabric).member_seconds[2] == 2);
  const auto whole = simulate(steps, fabric, {.record_intervals = true});
  fabric.costs.packet_bytes = 10;
  const auto packets = simulate(steps, fabric, {.record_intervals = true});
  CHECK(whole.seconds == 10);
  CHECK(packets.seconds == 10);
  // Member 4's second receive: whole, after the first message; in packets, every second turn.
  CHECK(whole.intervals[3].end_seconds == 10);
  CHECK(packets.intervals[3].end_seconds == 4);
}

TEST_CASE("where peers take turns, messages to several leave together, those to one in order") {
  Fabric fabric = nodes(3, 1, 1);
  const auto steps = posted_at_once(3, {{0, 1, 40}, {0, 1, 10}, {0, 2, 30}});
  const auto in_order = simulate(steps, fabric);
  CHECK(in_order.member_seconds[1] == 5);
  CHECK(in_order.member_seconds[2] == 8);
  fabric.costs.turns = Turns::kByPeer;
  fabric.costs.packet_bytes = 10;
  const auto turns = simulate(steps, fabric, {.record_intervals = true});
  // To 1, to 2, to 1, to 2, to 1, to 2: that one's message is there; then the rest to 1.
  CHECK(turns.member_seconds[2] == 6);
  CHECK(turns.intervals[3].end_seconds == 7);
  CHECK(turns.intervals[4].end_seconds == 8);
  CHECK(turns.seconds == 8);
  fabric.costs.packet_bytes = 0;
  CHECK(simulate(steps, fabric).member_seconds[2] ==
        7);  // after the first message, before the second
}

// Everybody sends to member 0 first, then to 1, ...: in order, all wait for one port after another;
// by turns nobody's NIC is hit harder than another's for long.
TEST_CASE("without a thought for the order, turns by peer save an exchange from queueing") {
  const int64_t n = 8;
  std::vector<example::Message> messages;
  for (int32_t to = 0; to < n; ++to)
    for (int32_t from = 0; from < n; ++from)
      if (from != to) messages.push_back({from, to, 1000});
  Fabric fabric = nodes(n, 1, 1);
  const auto steps = posted_at_once(n, messages);
  const double limit = 100 * (n - 1);
  CHECK(simulate(steps, fabric).seconds > 1.5 * limit);
  fabric.costs.turns = Turns::kByPeer;
  fabric.costs.packet_bytes = 10;
  CHECK(simulate(steps, fabric).seconds < 1.03 * limit);
}

TEST_CASE("intervals: a send lasts until its bytes have left, a receive until they are there") {
  Fabric fabric = nodes(2, 1, 1);
  fabric.levels[1].latency_seconds = 3;
  const auto simulated =
      simulate(posted_at_once(2, {{0, 1, 50}, {0, 1, 50}}), fabric, {.record_intervals = true});
  REQUIRE(simulated.intervals.size() == 4);
  CHECK(simulated.intervals[1].begin_seconds == 5);
  CHECK(simulated.intervals[1].end_seconds == 10);
  CHECK(simulated.intervals[2].begin_seconds == 0);
  CHECK(simulated.intervals[2].end_seconds == 3 + 5);
  CHECK(simulated.intervals[3].end_seconds == 3 + 10);
}

TEST_CASE("a group of one member and no steps takes no time") {
  CHECK(simulate({MemberSteps{}}, nodes(1, 1, 1)).seconds == 0);
  CHECK(simulate(example::uniform(1, 5), nodes(1, 1, 1)).seconds == 0);
}

TEST_CASE("lists without meaning are refused: no counterpart, another size, a circle") {
  const Fabric fabric = nodes(1, 2, 1);
  auto members = posted_at_once(2, {{0, 1, 5}});
  members[0].steps[0].part = 9;
  CHECK_THROWS_WITH_AS(simulate(members, fabric), doctest::Contains("has no receive"),
                       InternalError);
  members = posted_at_once(2, {{0, 1, 5}});
  members[0].steps[0].source.count = 6;
  CHECK_THROWS_WITH_AS(simulate(members, fabric), doctest::Contains("its receive takes 5"),
                       InternalError);
  members = posted_at_once(2, {{0, 1, 5}});
  members[0].steps.clear();
  CHECK_THROWS_WITH_AS(simulate(members, fabric), doctest::Contains("the others wait for 1"),
                       InternalError);
  members = posted_at_once(2, {{0, 1, 5}});
  members[0].steps.push_back(members[0].steps[0]);
  CHECK_THROWS_AS(simulate(members, fabric), InternalError);
  // Each waits for the other before it sends.
  members = posted_at_once(2, {{0, 1, 5}, {1, 0, 5}});
  std::swap(members[0].steps[0], members[0].steps[1]);
  members[0].steps[1].after = {0};
  members[1].steps[1].after = {0};
  CHECK_THROWS_WITH_AS(simulate(members, fabric), doctest::Contains("wait in a circle"),
                       InternalError);
  CHECK_THROWS_WITH_AS(simulate(posted_at_once(3, {}), fabric),
                       doctest::Contains("the fabric has 2 members"), InvalidInput);
}

}  // namespace
}  // namespace piper::sim
