#include <bench/nccl.h>
#include <bench/nccl_exchanges.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/comm/network.h>
#include <piper/nccl/communicator.h>

namespace piper::cli {
namespace {

// By rank: its place among the ranks of its host.
std::vector<int> devices_of(comm::World& world, const nccl::Library& library) {
  const std::vector<std::string> hosts = world.share("hosts of devices", comm::host_name());
  const auto ranks_a_process = static_cast<int64_t>(world.local_ranks().size());
  std::vector<int> devices;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    int device = 0;
    for (int64_t before = 0; before < rank; ++before)
      device += hosts[before / ranks_a_process] == hosts[rank / ranks_a_process] ? 1 : 0;
    devices.push_back(device);
  }
  const int num_devices = library.num_devices();
  for (const Rank rank : world.local_ranks())
    if (devices[rank.index()] >= num_devices)
      throw InvalidInput(fmt::format(
          "--transport nccl: rank {} is number {} of its host, which has {} device{}; allowed: a "
          "device for each rank",
          rank.value, devices[rank.index()] + 1, num_devices, num_devices == 1 ? "" : "s"));
  return devices;
}

}  // namespace

std::function<std::unique_ptr<comm::DeviceExchanges>(const comm::Transport&)> open_nccl(
    comm::World& world, size_t num_uses) {
  const auto library = std::make_shared<nccl::Library>();
  const std::vector<int> devices = devices_of(world, *library);
  std::vector<Rank> members;
  for (int64_t rank = 0; rank < world.size(); ++rank) members.emplace_back(rank);
  std::vector<std::shared_ptr<nccl::Meeting>> meetings;
  for (size_t i = 0; i < num_uses; ++i)
    meetings.push_back(nccl::meet(world, *library, fmt::format("bench {}", i), members));
  // Each rank's own count of uses.
  const auto used = std::make_shared<std::vector<size_t>>(members.size(), 0);
  return [&world, library, devices, meetings, used](const comm::Transport& transport) {
    const Rank rank = transport.rank();
    return nccl::make_bench_exchanges(library, world, meetings.at((*used)[rank.index()]++),
                                      rank.value, devices[rank.index()]);
  };
}

}  // namespace piper::cli
