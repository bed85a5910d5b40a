#include <piper/base/error.h>
#include <piper/cluster/cluster.h>

namespace piper::cluster {

int64_t Cluster::devices_of_level(size_t level) const {
  PIPER_CHECK(level < levels.size(), "no such level");
  int64_t devices = 1;
  for (size_t i = 0; i <= level; ++i) devices *= levels[i].num_members;
  return devices;
}

double Cluster::number(const std::string& name, double fallback) const {
  const auto found = numbers.find(name);
  return found == numbers.end() ? fallback : found->second;
}

int64_t Cluster::num_devices() const {
  PIPER_CHECK(!levels.empty(), "a cluster without levels");
  return devices_of_level(levels.size() - 1);
}

int64_t Cluster::devices_per_node() const {
  PIPER_CHECK(!levels.empty(), "a cluster without levels");
  return levels.front().num_members;
}

size_t Cluster::common_level(int64_t device_a, int64_t device_b) const {
  const int64_t devices = num_devices();
  PIPER_CHECK(device_a >= 0 && device_a < devices && device_b >= 0 && device_b < devices,
              "a device that the cluster does not have");
  size_t level = 0;
  while ((device_a /= levels[level].num_members) != (device_b /= levels[level].num_members))
    ++level;
  return level;
}

}  // namespace piper::cluster
