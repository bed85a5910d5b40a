#include <fmt/format.h>
#include <piper/comm/bench.h>
#include <piper/comm/device_transport.h>
#include <piper/comm/local.h>
#include <piper/executor/device_streams.h>
#include <piper/executor/tensor_device_operations.h>
#include <piper/profile/bench_device.h>
#include <piper/profile/measure_links.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

namespace piper::profile {
namespace {

using Measure = std::vector<comm::Sample>(comm::World&, const std::vector<int64_t>&,
                                          const comm::BenchOptions&);

struct Kind {
  const char* name;
  Measure* measure;
  bool to_everyone;  // a part of 1 / n stays
  bool in_parts;     // of n equal ones; else of elements of 4 bytes
  int64_t measured_bytes(int64_t bytes, int64_t n) const {
    return bytes - bytes % (in_parts ? n : 4);
  }
};

constexpr Kind kKinds[] = {{"point-to-point", &comm::measure_point_to_point, false, false},
                           {"all-to-all", &comm::measure_all_to_all, true, true},
                           {"all-reduce", &comm::measure_all_reduce, true, false},
                           {"reduce-scatter", &comm::measure_reduce_scatter, true, false},
                           {"all-gather", &comm::measure_all_gather, true, false}};
constexpr size_t kPriced = 3;  // the first ones are what predictions ask for
// Exchanges of a step find their rows in other caches, and their peers asleep or computing.
constexpr int64_t kBytesBetween = 4 << 20;

// A rank's operands on its device, which it shares with no other but by chance.
class DeviceOperands final : public comm::BenchOperands {
 public:
  DeviceOperands(comm::Transport& host, const at::Device& device,
                 std::shared_ptr<comm::DeviceOffers> offers)
      : device_{device},
        on_device_(device),
        memory_(executor::make_tensor_device_operations(device)),
        transport_(host, *memory_, std::move(offers)) {}

  comm::Transport& transport() override { return transport_; }
  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    const at::Tensor there = at::empty({static_cast<int64_t>(bytes)}, device_.with(at::kByte));
    return {static_cast<std::byte*>(there.mutable_data_ptr()), [there](std::byte*) {}};
  }
  void wait() override { device_.wait(); }

 private:
  BenchDevice device_;
  executor::OnDevice on_device_;
  std::unique_ptr<comm::DeviceMemory> memory_;
  comm::DeviceTransport transport_;
};

std::function<std::unique_ptr<comm::BenchOperands>(comm::Transport&)> operands_of(
    const LinkOptions& options) {
  if (options.devices.empty()) return {};
  return [&options, offers = std::make_shared<comm::DeviceOffers>()](comm::Transport& host) {
    return std::make_unique<DeviceOperands>(
        host, options.devices[host.rank().index() % options.devices.size()], offers);
  };
}

std::span<const Kind> kinds_of(const LinkOptions& options) {
  return std::span(kKinds).first(options.full ? std::size(kKinds) : kPriced);
}

std::vector<int64_t> sizes_of(const LinkOptions& options) {
  std::vector<int64_t> sizes;
  if (options.full)
    for (int64_t bytes = 64; bytes <= 64 << 20; bytes *= 4) sizes.push_back(bytes);
  else
    sizes = {64, 256, 4096, 65536, 524288, 4194304, 16777216};
  if (!options.devices.empty())  // whose links are so fast that shorter messages are latency
    for (const int64_t bytes : {64 << 20, 256 << 20})
      if (sizes.back() < bytes) sizes.push_back(bytes);
  // Two buffers a rank, and scratch. A fit needs two sizes, whatever the memory.
  while (sizes.size() > 2 && 3 * static_cast<double>(sizes.back()) > options.operand_bytes)
    sizes.pop_back();
  return sizes;
}

std::vector<int64_t> groups_of(const LinkOptions& options) {
  std::vector<int64_t> groups;
  for (int64_t n = 2; options.full && n < options.num_ranks; n *= 2) groups.push_back(n);
  if (options.num_ranks > 1) groups.push_back(options.num_ranks);
  return groups;
}

}  // namespace

std::vector<cluster::Curve> measure_links_of(
    comm::World& world, const LinkOptions& options, double budget_seconds,
    const std::function<void(const std::string& curve)>& after_point) {
  if (world.size() == 1) return {};  // no links
  const auto n = static_cast<double>(world.size());
  const std::vector<int64_t> sizes = sizes_of(options);
  const double points = static_cast<double>(kinds_of(options).size() * sizes.size());
  const comm::BenchOptions bench{.budget_seconds = budget_seconds / points,
                                 .max_batches = 1000,
                                 .tight = options.tight,
                                 .bytes_between = kBytesBetween};
  std::vector<cluster::Curve> curves;
  for (const Kind& kind : kinds_of(options)) {
    cluster::Curve curve{.name = kind.name, .unit = "bytes", .axes = {"bytes"}};
    const double leaves = kind.to_everyone && n > 1 ? (n - 1) / n : 1;
    for (const int64_t bytes : sizes) {
      for (const comm::Sample& sample : kind.measure(world, {bytes}, bench)) {
        const auto measured = static_cast<double>(sample.bytes);
        curve.points.push_back({{measured}, measured * leaves, sample.timing});
      }
      if (after_point) after_point(curve.name);
    }
    if (curve.points.empty()) continue;  // another process holds them
    curve.fit = cluster::fit_alpha_beta(cluster::samples_of(curve));
    curves.push_back(std::move(curve));
  }
  return curves;
}

int64_t num_link_points(const LinkOptions& options) {
  return std::ssize(kinds_of(options)) * std::ssize(groups_of(options)) *
         std::ssize(sizes_of(options));
}

std::vector<cluster::Curve> measure_links(
    const LinkOptions& options, TimeShares& shares, ProfileJournal& journal,
    const std::function<void(const std::string& curve)>& after_point) {
  std::vector<cluster::Curve> curves;
  for (const int64_t n : groups_of(options)) {
    comm::LocalWorld world(n);
    const auto operands = operands_of(options);
    for (const Kind& kind : kinds_of(options)) {
      const bool all = n == options.num_ranks;
      cluster::Curve curve{.name = all ? kind.name : fmt::format("{}, {} ranks", kind.name, n),
                           .unit = "bytes",
                           .axes = {"bytes"}};
      const double leaves =
          kind.to_everyone && n > 1 ? static_cast<double>(n - 1) / static_cast<double>(n) : 1;
      for (const int64_t bytes : sizes_of(options)) {
        const auto at = static_cast<double>(kind.measured_bytes(bytes, n));
        if (const auto known = journal.find(curve.name, {at})) {
          shares.skip();
          curve.points.push_back({{at}, at * leaves, *known});
        } else {
          const comm::BenchOptions bench{.budget_seconds = shares.next(),
                                         .max_batches = 1000,
                                         .tight = options.tight,
                                         .bytes_between = kBytesBetween,
                                         .operands = operands};
          const comm::Sample sample = kind.measure(world, {bytes}, bench).front();
          const auto measured = static_cast<double>(sample.bytes);
          curve.points.push_back({{measured}, measured * leaves, sample.timing});
          journal.add(curve.name, {measured}, sample.timing);
        }
        if (after_point) after_point(curve.name);
      }
      curve.fit = cluster::fit_alpha_beta(cluster::samples_of(curve));
      curves.push_back(std::move(curve));
    }
  }
  return curves;
}

}  // namespace piper::profile
