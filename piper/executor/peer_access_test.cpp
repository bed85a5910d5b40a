#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/executor/peer_access.h>

#include <set>
#include <utility>

namespace piper::executor {
namespace {

struct Fake {
  std::set<std::pair<int, int>> enabled;
  int current = 7, forgotten = 0, refuses = -1;
};
Fake& fake() {
  static Fake of;
  return of;
}

const PeerRuntime kFake{.can_access =
                            [](int* can, int device, int) {
                              *can = device == fake().refuses ? 0 : 1;
                              return 0;
                            },
                        .set_device =
                            [](int device) {
                              fake().current = device;
                              return 0;
                            },
                        .get_device =
                            [](int* device) {
                              *device = fake().current;
                              return 0;
                            },
                        .enable =
                            [](int peer, unsigned int) {
                              return fake().enabled.emplace(fake().current, peer).second ? 0 : 704;
                            },
                        .forget_error =
                            [] {
                              ++fake().forgotten;
                              return 0;
                            }};

std::vector<at::Device> gpus(const std::vector<int>& numbers) {
  std::vector<at::Device> devices;
  for (const int number : numbers)
    devices.emplace_back(at::kCUDA, static_cast<at::DeviceIndex>(number));
  return devices;
}

}  // namespace

TEST_CASE("every GPU of a process may read every other's memory, and one that cannot is named") {
  fake() = {};
  let_devices_meet(gpus({0, 2, 3}), kFake);
  const std::set<std::pair<int, int>> all{{0, 2}, {0, 3}, {2, 0}, {2, 3}, {3, 0}, {3, 2}};
  CHECK(fake().enabled == all);
  CHECK(fake().current == 7);  // as before
  CHECK_NOTHROW(let_devices_meet(gpus({3, 0}), kFake));
  CHECK(fake().forgotten == 8);
  let_devices_meet(gpus({5}), kFake);
  let_devices_meet({at::Device(at::kCPU), at::Device(at::kCPU)}, kFake);
  CHECK(fake().enabled == all);
  fake().refuses = 1;
  CHECK_THROWS_WITH_AS(let_devices_meet(gpus({0, 1}), kFake),
                       doctest::Contains("cuda:1 cannot read the memory of cuda:0"), InvalidInput);
  CHECK_NOTHROW(let_devices_meet(gpus({0, 1}), {}));  // there is no such runtime
}

}  // namespace piper::executor
