#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/train/rank_devices.h>
#include <piper/train/rank_memory.h>

namespace piper::train {
namespace {

// Devices of a type that needs no driver to be named.
std::vector<at::Device> devices(int count) {
  std::vector<at::Device> all;
  for (int d = 0; d < count; ++d) all.emplace_back(at::kCUDA, static_cast<c10::DeviceIndex>(d));
  return all;
}

std::vector<Rank> ranks(int64_t first, int64_t count) {
  std::vector<Rank> all;
  for (int64_t r = 0; r < count; ++r) all.emplace_back(first + r);
  return all;
}

// As in a host: its processes name it alike.
class Hosts final : public comm::World {
 public:
  Hosts(std::vector<std::string> names, int64_t process, int64_t ranks_each)
      : names_(std::move(names)), process_(process), ranks_each_(ranks_each) {}
  int64_t size() const override { return num_processes() * ranks_each_; }
  std::vector<Rank> local_ranks() const override {
    return ranks(process_ * ranks_each_, ranks_each_);
  }
  int64_t process() const override { return process_; }
  int64_t num_processes() const override { return std::ssize(names_); }
  std::unique_ptr<comm::Transport> endpoint(Rank) override { return nullptr; }
  Rank failed_rank() const override { return Rank::none(); }
  std::string failure_reason() const override { return {}; }
  comm::Fault failure_fault() const override { return comm::Fault::kRun; }
  std::vector<std::string> share(const std::string&, const std::string&) override { return names_; }
  void note(Rank, int64_t, std::string_view) override {}

 private:
  std::vector<std::string> names_;
  int64_t process_, ranks_each_;
};

}  // namespace

TEST_CASE("ranks take devices in turn and share them when they are more") {
  const RankDevices cpu({}, ranks(0, 4));
  CHECK(cpu.is_cpu());
  CHECK(cpu.of(Rank(7)).is_cpu());

  const RankDevices shared(devices(2), ranks(4, 3));
  REQUIRE(shared.uses().size() == 2);
  CHECK((shared.uses()[0].ranks == std::vector{Rank(4), Rank(6)}));
  CHECK((shared.uses()[1].ranks == std::vector{Rank(5)}));
  CHECK(shared.of(Rank(5)).index() == 1);
  CHECK(shared.use_of(Rank(6)) == 0);
  CHECK_THROWS_AS(shared.of(Rank(3)), InternalError);
}

TEST_CASE("of ranks that share a device the first one's reading of its peak is that of all") {
  const RankDevices shared(devices(2), ranks(4, 3));
  const auto read_by = [&](Rank rank) {
    return RankMemory(rank, shared.uses()[shared.use_of(rank)], nullptr).reads_for();
  };
  CHECK((read_by(Rank(4)) == std::vector{Rank(4), Rank(6)}));
  CHECK((read_by(Rank(5)) == std::vector{Rank(5)}));
  CHECK((read_by(Rank(6)) == std::vector{Rank(6)}));
  CHECK((RankMemory(Rank(6)).reads_for() == std::vector{Rank(6)}));
}

TEST_CASE("processes of one host go on where the one before has stopped") {
  const std::vector<std::string> names{"a", "b", "a", "a"};
  const auto first_device = [&](int64_t process, int64_t ranks_each, int count) {
    Hosts world(names, process, ranks_each);
    const RankDevices placed = place_on_devices(world, devices(count));
    return placed.of(world.local_ranks().front()).index();
  };
  CHECK(first_device(0, 1, 4) == 0);
  CHECK(first_device(1, 1, 4) == 0);  // the first on its host
  CHECK(first_device(2, 1, 4) == 1);
  CHECK(first_device(3, 1, 4) == 2);
  CHECK(first_device(3, 2, 8) == 4);
  CHECK(first_device(3, 2, 3) == 1);  // around
  Hosts world(names, 3, 2);
  CHECK(place_on_devices(world, {at::Device(at::kCPU)}).is_cpu());
}

}  // namespace piper::train
