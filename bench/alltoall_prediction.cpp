#include <bench/alltoall_prediction.h>
#include <piper/comm/exchange_limit.h>
#include <piper/sim/fabric.h>
#include <piper/sim/flow_limit.h>

#include <algorithm>

namespace piper::cli {
namespace {

// As the TCP wire does it: larger messages are offered, all of them go in frames, and connections
// take turns.
constexpr int64_t kEagerBytes = 256 << 10;

// What the description says of frames: the bytes that one carries, and those of its heads.
class Frames {
 public:
  explicit Frames(const cluster::Cluster& cluster) : numbers_(cluster.numbers) {}

  int64_t bytes() const { return static_cast<int64_t>(number("frame_bytes", 9000)); }
  // These return what each frame costs at a port of this rate, beside its payload.
  double inner_seconds(double rate) const { return head_seconds("inner_frame_seconds", rate); }
  double nic_seconds(double rate) const { return head_seconds("nic_frame_seconds", rate); }

 private:
  double number(const char* name, double otherwise) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? otherwise : found->second;
  }
  double head_seconds(const char* name, double rate) const {
    return number(name, 0) + number("frame_head_bytes", 0) / rate;
  }

  const std::map<std::string, double>& numbers_;
};

double latency(const cluster::Cluster& cluster, size_t level) {
  return cluster.levels[std::min(level, cluster.levels.size() - 1)].link.latency_seconds;
}

void add_groups(sim::Fabric& fabric, const collective::Topology& topology,
                const comm::LinkRates& rates, const cluster::Cluster& cluster) {
  const Frames frames(cluster);
  for (size_t level = 1; level < topology.unit.size(); ++level) {
    const std::vector<int32_t>& unit = topology.unit[level];
    sim::FabricLevel added{
        .name = "group", .latency_seconds = latency(cluster, level), .unit = unit};
    const int32_t num_units = *std::ranges::max_element(unit) + 1;
    const double rate = rates.uplink[level - 1];
    for (int32_t u = 0; u < num_units; ++u) {
      const bool narrow = rate > 0 && num_units > 1;
      const auto port = [&](const char* name) {
        return narrow ? fabric.add_port(name, rate, frames.nic_seconds(rate)) : sim::kNoPort;
      };
      added.out.push_back(port("group out"));
      added.in.push_back(port("group in"));
    }
    fabric.levels.push_back(std::move(added));
  }
  const std::vector<int32_t>& last = fabric.levels.back().unit;
  if (std::ranges::all_of(last, [](int32_t unit) { return unit == 0; })) return;
  fabric.levels.push_back({.name = "all",
                           .latency_seconds = latency(cluster, topology.unit.size()),
                           .unit = std::vector<int32_t>(last.size(), 0)});
}

// Where the ranks of all nodes are processes of one host and share its cores (scripts/lab): what a
// message takes of a core.
void share_processors(sim::Fabric& fabric, int64_t num_ranks, const cluster::Cluster& cluster) {
  const auto number = [&](const char* name) {
    const auto found = cluster.numbers.find(name);
    return found == cluster.numbers.end() ? 0.0 : found->second;
  };
  fabric.costs.send_seconds = number("host_send_seconds");
  fabric.costs.receive_seconds = number("host_receive_seconds");
  const int64_t cores = cluster.cores_per_node;
  if (fabric.costs.send_seconds <= 0 || cores <= 0) return;
  for (int64_t rank = 0; rank < num_ranks; ++rank)
    fabric.processor.push_back(static_cast<int32_t>(rank % std::min(cores, num_ranks)));
}

}  // namespace

std::optional<double> predicted_seconds(const comm::Exchange& exchange,
                                        const collective::Topology& topology, int64_t num_ranks,
                                        const cluster::Cluster& cluster) {
  const comm::LinkRates rates = comm::link_rates(cluster, topology);
  const bool several = *std::ranges::max_element(topology.unit.front()) > 0;
  if (!exchange.steps || rates.inner <= 0 || (several && rates.nic <= 0)) return std::nullopt;
  sim::Fabric fabric;
  fabric.costs.eager_bytes = kEagerBytes;
  fabric.costs.eager_is_copied = true;
  fabric.costs.rendezvous = sim::Rendezvous::kOffer;
  fabric.costs.turns = sim::Turns::kByPeer;
  const Frames frames(cluster);
  fabric.costs.packet_bytes = frames.bytes();
  share_processors(fabric, num_ranks, cluster);
  sim::add_nodes(fabric, topology.unit.front(), topology.nic,
                 {.inner_bytes_per_second = rates.inner,
                  .nic_bytes_per_second = rates.nic,
                  .latency_seconds = latency(cluster, 0),
                  .inner_message_seconds = frames.inner_seconds(rates.inner),
                  .nic_message_seconds = several ? frames.nic_seconds(rates.nic) : 0});
  add_groups(fabric, topology, rates, cluster);
  return sim::price(num_ranks, exchange.steps, fabric);
}

}  // namespace piper::cli
