#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/executor/peer_access.h>
#include <piper/train/rank_devices.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace piper::train {

RankDevices::RankDevices(const std::vector<at::Device>& devices, const std::vector<Rank>& ranks,
                         int64_t first) {
  for (size_t i = 0; i < ranks.size() && !devices.empty(); ++i) {
    const at::Device device = devices[(static_cast<size_t>(first) + i) % devices.size()];
    auto use = std::ranges::find(uses_, device, &Use::device);
    if (use == uses_.end()) use = uses_.insert(use, {device, {}});
    use->ranks.push_back(ranks[i]);
  }
}

at::Device RankDevices::of(Rank rank) const {
  return is_cpu() ? at::Device(at::kCPU) : uses_[use_of(rank)].device;
}

size_t RankDevices::use_of(Rank rank) const {
  const auto use = std::ranges::find_if(
      uses_, [&](const Use& of) { return std::ranges::find(of.ranks, rank) != of.ranks.end(); });
  PIPER_CHECK(use != uses_.end(), fmt::format("rank {} is no rank of this process", rank.value));
  return static_cast<size_t>(use - uses_.begin());
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

RankDevices place_on_devices(comm::World& world, const std::vector<at::Device>& devices) {
  if (devices.empty() || devices.front().is_cpu()) return {};
  const std::vector<std::string> hosts = world.share("hosts of devices", host_name());
  const auto mine = hosts.begin() + world.process();
  const int64_t before = std::count(hosts.begin(), mine, *mine);
  RankDevices placed(devices, world.local_ranks(), before * std::ssize(world.local_ranks()));
  std::vector<at::Device> used;
  for (const RankDevices::Use& use : placed.uses()) used.push_back(use.device);
  executor::let_devices_meet(used);
  return placed;
}

}  // namespace piper::train
