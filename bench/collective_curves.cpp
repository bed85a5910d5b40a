#include <bench/collective_curves.h>
#include <piper/base/error.h>
#include <piper/collective/algorithms.h>
#include <piper/cost/links.h>
#include <piper/sim/flow_limit.h>
#include <piper/sim/placement.h>

#include <algorithm>

namespace piper::cli {
namespace {

using collective::PhaseOne;
using strategy::AllToAll;

struct Entry {
  const char* name;
  AllToAll algorithm;
  collective::AllToAllOptions options;  // counts are one unit a pair
};
const std::vector<Entry>& entries() {
  static const std::vector<Entry> list{{"naive", AllToAll::kNaive, {}},
                                       {"pairwise", AllToAll::kPairwise, {}},
                                       {"node-aware", AllToAll::kNodeAware, {}},
                                       {"leader", AllToAll::kLeader, {}},
                                       {"halo-printed", AllToAll::kHaloPrinted, {}},
                                       {"halo", AllToAll::kHalo, {}},
                                       {"halo by rows", AllToAll::kHalo, {.chunk = 1}},
                                       {"halo-switch", AllToAll::kHaloSwitch, {}}};
  return list;
}

// Messages that cross ports of units are cut into so many packets (MessageCosts::packets_across).
constexpr int32_t kPackets = 4;
constexpr int64_t kPacketBytes = 65536;  // of those that take turns

void apply(const CurveQuestion& question, sim::Fabric& fabric) {
  if (question.message_seconds) {
    for (sim::FabricLevel& level : fabric.levels)
      level.latency_seconds += fabric.costs.send_seconds - *question.message_seconds;
    fabric.costs.send_seconds = *question.message_seconds;
  }
  fabric.costs.packets_across = kPackets;
  if (!question.by_turns) return;
  fabric.costs.turns = sim::Turns::kByPeer;
  fabric.costs.packet_bytes = kPacketBytes;
}

sim::Placement placement_of(const cluster::Cluster& cluster, const CurveQuestion& question,
                            const std::string& name, int64_t nodes) {
  if (name == "packed") return sim::packed(cluster, nodes);
  if (name == "drawn") return sim::drawn(cluster, nodes, 1);
  if (cluster.levels.size() < 3)
    throw InvalidInput("cluster " + cluster.name + " has " + std::to_string(cluster.levels.size()) +
                       " levels: nothing to scatter over; allowed: packed, drawn");
  return sim::scattered(cluster, nodes, cluster.levels.size() - 2, std::min(nodes, question.units));
}

// One unit for every pair, simulated at several sizes.
sim::FlowProgram program_of(const Entry& entry, const collective::Topology& topology,
                            const collective::CountOf& count) {
  return sim::flow_program(collective::num_members(topology), [&](int64_t member) {
    return collective::all_to_all(entry.algorithm, member, topology, count, entry.options);
  });
}

int64_t one(int64_t, int64_t) { return 1; }

sim::Fabric fabric_of(const cluster::Cluster& cluster, const CurveQuestion& question,
                      const std::string& name, const sim::Placement& placement) {
  sim::Fabric fabric = sim::fabric_of(cluster, placement);
  const size_t level = cluster.levels.size() - 2;
  if (name == "minimal" && fabric.levels.size() > level + 1)
    sim::add_links_between(fabric, level, question.pair_bytes_per_second);
  apply(question, fabric);
  return fabric;
}

}  // namespace

const CurvePoint::Time& CurvePoint::of(const std::string& algorithm) const {
  const auto found = std::ranges::find(times, algorithm, &Time::algorithm);
  PIPER_CHECK(found != times.end(), algorithm);
  return *found;
}

const CurvePoint::Time& CurvePoint::best_halo() const {
  const Time* best = nullptr;
  for (const Time& time : times)
    if (time.algorithm.starts_with("halo") && (!best || time.seconds < best->seconds)) best = &time;
  PIPER_CHECK(best != nullptr);
  return *best;
}

std::vector<CurvePoint> simulate_curves(const cluster::Cluster& cluster,
                                        const CurveQuestion& question) {
  std::vector<CurvePoint> points;
  for (const std::string& name : question.placements)
    for (const int64_t nodes : question.nodes) {
      const sim::Placement placement = placement_of(cluster, question, name, nodes);
      const sim::Fabric fabric = fabric_of(cluster, question, name, placement);
      const collective::Topology topology = sim::topology_of(cluster, placement);
      const size_t first = points.size();
      for (const int64_t bytes : question.bytes) {
        const auto all = [bytes](int64_t, int64_t) { return bytes; };
        points.push_back({.placement = name,
                          .nodes = nodes,
                          .bytes = bytes,
                          .limit_seconds = sim::exchange_limit(fabric, all).seconds});
      }
      for (const Entry& entry : entries()) {
        const sim::FlowProgram program = program_of(entry, topology, one);
        for (size_t i = first; i < points.size(); ++i) {
          const sim::SimulatedFlows simulated = sim::simulate_flows(
              program, fabric, {.bytes_per_unit = static_cast<double>(points[i].bytes)});
          points[i].times.push_back(
              {entry.name, simulated.seconds, name_of(sim::limit_of(simulated, fabric), fabric)});
        }
      }
    }
  return points;
}

std::vector<Crossover> crossovers(const std::vector<CurvePoint>& points) {
  constexpr double kMore = 1.1;
  std::vector<Crossover> list;
  for (const CurvePoint& point : points)
    for (const char* opponent : {"naive", "pairwise", "node-aware"}) {
      const auto same = [&](const Crossover& c) {
        return c.placement == point.placement && c.bytes == point.bytes && c.opponent == opponent;
      };
      auto found = std::ranges::find_if(list, same);
      if (found == list.end())
        found = list.insert(list.end(), {point.placement, opponent, point.bytes, 0});
      const bool faster = point.of(opponent).seconds > kMore * point.best_halo().seconds;
      if (!faster)
        found->nodes = 0;
      else if (found->nodes == 0)
        found->nodes = point.nodes;
    }
  return list;
}

std::vector<RankPoint> simulate_ranks(const cluster::Cluster& cluster,
                                      const CurveQuestion& question) {
  std::vector<RankPoint> points;
  const int64_t in_node = cluster.devices_per_node();
  for (int64_t ranks = 2; ranks <= std::min<int64_t>(64, cluster.num_devices()); ranks *= 2) {
    const int64_t nodes = (ranks + in_node - 1) / in_node;
    const sim::Placement placement = sim::packed(cluster, nodes, std::min(ranks, in_node));
    const sim::Fabric fabric = fabric_of(cluster, question, "packed", placement);
    const Entry flat{"node-aware", AllToAll::kNodeAware, {}};
    const sim::FlowProgram program = program_of(flat, sim::topology_of(cluster, placement), one);
    for (const int64_t bytes_a_rank :
         {int64_t{1} << 16, int64_t{1} << 20, int64_t{1} << 24, int64_t{1} << 28}) {
      const double pair = static_cast<double>(bytes_a_rank) / static_cast<double>(ranks);
      RankPoint point{.ranks = ranks, .nodes = nodes, .bytes_a_rank = bytes_a_rank};
      point.seconds = sim::simulate_flows(program, fabric, {.bytes_per_unit = pair}).seconds;
      point.bus_bandwidth = pair * static_cast<double>(ranks - 1) / point.seconds;
      if (nodes > 1) {
        const double card = cost::device_bandwidth(cluster, 1);
        point.eq6_seconds = pair * static_cast<double>(ranks - 1) / card;
        point.across_seconds = pair * static_cast<double>(ranks - in_node) / card;
      }
      points.push_back(point);
    }
  }
  return points;
}

std::vector<PhasePoint> simulate_phases(const cluster::Cluster& cluster,
                                        const CurveQuestion& question) {
  std::vector<PhasePoint> points;
  for (const int64_t nodes : question.nodes) {
    const sim::Placement placement = sim::packed(cluster, nodes);
    const sim::Fabric fabric = fabric_of(cluster, question, "packed", placement);
    const collective::Topology topology = sim::topology_of(cluster, placement);
    const auto together = [&](int64_t from, int64_t to) {
      return topology.unit[0][static_cast<size_t>(from)] ==
             topology.unit[0][static_cast<size_t>(to)];
    };
    const auto inside = [&](int64_t from, int64_t to) { return int64_t{together(from, to)}; };
    const auto across = [&](int64_t from, int64_t to) { return int64_t{!together(from, to)}; };
    const Entry under_two{"", AllToAll::kHaloPrinted, {.phase_one = PhaseOne::kUnderTwo}};
    const Entry under_three{"", AllToAll::kHaloPrinted, {.phase_one = PhaseOne::kUnderThree}};
    const std::vector<sim::FlowProgram> programs{
        program_of(under_two, topology, inside), program_of(under_two, topology, across),
        program_of(under_two, topology, one), program_of(under_three, topology, one)};
    for (const int64_t bytes : question.bytes) {
      const auto seconds = [&](size_t program) {
        return sim::simulate_flows(programs[program], fabric,
                                   {.bytes_per_unit = static_cast<double>(bytes)})
            .seconds;
      };
      points.push_back({.nodes = nodes,
                        .bytes = bytes,
                        .one_seconds = seconds(0),
                        .two_three_seconds = seconds(1),
                        .under_two_seconds = seconds(2),
                        .under_three_seconds = seconds(3)});
    }
  }
  return points;
}

}  // namespace piper::cli
