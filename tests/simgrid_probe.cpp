// Writes one case of a collective for SimGrid's SMPI (platform, hosts, step lists) and prints what
// simulate_flows() says of it: `simgrid_probe SHAPE ALGORITHM BYTES FOLDER STARTUP`, or
// `simgrid_probe` alone for the shapes. tests/simgrid.py runs it.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/collective/algorithms.h>
#include <piper/collective/all_to_all_halo_chunked.h>
#include <piper/sim/fabric_shapes.h>
#include <piper/sim/flow_limit.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

using namespace piper;
using collective::MemberSteps;
using collective::StepKind;

namespace {

const sim::NodeShape kFourCards{.num_members = 4,
                                .num_nics = 4,
                                .inner_bytes_per_second = 50e9,
                                .nic_bytes_per_second = 12.5e9,
                                .latency_seconds = 4e-6};
const sim::NodeShape kSharedCards{.num_members = 8,
                                  .num_nics = 4,
                                  .inner_bytes_per_second = 50e9,
                                  .nic_bytes_per_second = 25e9,
                                  .latency_seconds = 4e-6};

std::map<std::string, std::function<sim::Fabric()>> shapes() {
  return {
      {"flat-16",
       [] {
         return sim::tree(kFourCards, {{"system", 4, 10e-6}});
       }},
      {"shared-NICs-64",
       [] {
         return sim::tree(kSharedCards, {{"system", 8, 10e-6}});
       }},
      {"fat-tree-64",
       [] {
         return sim::fat_tree({.node = kFourCards,
                               .nodes_per_leaf = 4,
                               .num_leaves = 4,
                               .oversubscription = 2,
                               .hop_seconds = 4e-6});
       }},
      {"dragonfly-128",
       [] {
         return sim::dragonfly({.node = kSharedCards,
                                .nodes_per_switch = 2,
                                .switches_per_group = 2,
                                .num_groups = 4,
                                .local_bytes_per_second = 100e9,
                                .global_bytes_per_second = 60e9,
                                .hop_seconds = 3e-6,
                                .global_seconds = 5e-6});
       }},
  };
}

strategy::AllToAll algorithm_of(const std::string& name) {
  for (const strategy::AllToAll algorithm : strategy::kAllToAlls)
    if (name == strategy::name(algorithm)) return algorithm;
  throw InvalidInput("no algorithm " + name);
}

void write_platform(const sim::Fabric& fabric, const std::filesystem::path& folder) {
  std::ofstream xml(folder / "platform.xml");
  xml << "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
         "<platform version=\"4.1\"><zone id=\"world\" routing=\"Full\">\n";
  const int64_t n = fabric.num_members();
  for (int64_t m = 0; m < n; ++m) xml << fmt::format("<host id=\"h{}\" speed=\"1Gf\"/>\n", m);
  for (size_t p = 0; p < fabric.bytes_per_second.size(); ++p)
    xml << fmt::format("<link id=\"p{}\" bandwidth=\"{:.17g}Bps\" latency=\"0s\"/>\n", p,
                       fabric.bytes_per_second[p]);
  for (size_t l = 0; l < fabric.levels.size(); ++l)
    xml << fmt::format(
        "<link id=\"l{}\" bandwidth=\"1e18Bps\" latency=\"{:.17g}s\" "
        "sharing_policy=\"FATPIPE\"/>\n",
        l, fabric.levels[l].latency_seconds);
  for (int64_t from = 0; from < n; ++from)
    for (int64_t to = 0; to < n; ++to) {
      if (from == to) continue;
      xml << fmt::format("<route src=\"h{}\" dst=\"h{}\" symmetrical=\"NO\"><link_ctn id=\"l{}\"/>",
                         from, to, fabric.common_level(from, to));
      for (const int32_t port : fabric.route(from, to))
        xml << fmt::format("<link_ctn id=\"p{}\"/>", port);
      xml << "</route>\n";
    }
  xml << "</zone></platform>\n";
  std::ofstream hosts(folder / "hosts");
  for (int64_t m = 0; m < n; ++m) hosts << "h" << m << "\n";
}

void write_steps(const std::vector<MemberSteps>& members, const std::filesystem::path& folder) {
  for (size_t m = 0; m < members.size(); ++m) {
    std::ofstream out(folder / fmt::format("steps.{}", m));
    out << members[m].steps.size() << "\n";
    for (const collective::Step& step : members[m].steps) {
      const bool sends = step.kind == StepKind::kSend, receives = step.kind == StepKind::kReceive;
      const int64_t bytes = sends ? step.source.count : receives ? step.target.count : 0;
      out << (sends      ? 0
              : receives ? 1
                         : 2)
          << " " << step.peer << " " << step.part << " " << bytes << " " << step.after.size();
      for (const int32_t before : step.after) out << " " << before;
      out << "\n";
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) {
    for (const auto& [name, make] : shapes())
      fmt::print("shape {} {}\n", name, make().num_members());
    return 0;
  }
  if (argc != 6) return 2;
  const strategy::AllToAll algorithm = algorithm_of(argv[2]);
  sim::Fabric fabric = shapes().at(argv[1])();
  const int64_t bytes = std::stoll(argv[3]);
  const std::filesystem::path folder = argv[4];
  fabric.costs.send_seconds = std::stod(argv[5]);
  // As SMPI: a send is done when its message has been received, and nothing moves before both are
  // posted.
  fabric.costs.eager_bytes = 0;
  fabric.costs.sends_end_at_arrival = true;
  // Every message has its share of a port, as a fluid: small packets, which no switch piles up.
  fabric.costs.turns = sim::Turns::kByPeer;
  fabric.costs.packet_bytes = std::max<int64_t>(bytes / 128, 64);
  fabric.costs.packets_on_ports = 2;
  const collective::Topology topology = sim::topology_of(fabric);
  const auto count = [bytes](int64_t, int64_t) { return bytes; };
  std::vector<MemberSteps> members;
  for (int64_t m = 0; m < fabric.num_members(); ++m)
    members.push_back(collective::all_to_all(algorithm, m, topology, count,
                                             {.chunk = std::max<int64_t>(1, bytes)}));
  write_platform(fabric, folder);
  write_steps(members, folder);
  fmt::print("seconds {:.12g}\n", sim::price(members, fabric));
  return 0;
}
