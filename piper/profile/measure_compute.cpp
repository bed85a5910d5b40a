#include <piper/base/error.h>
#include <piper/cost/host_link.h>
#include <piper/cost/segment_time.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/profile/bench_operations.h>
#include <piper/profile/measure_compute.h>

#include <algorithm>
#include <string>

namespace piper::profile {
namespace {

struct Sizes {
  std::vector<double> gemm_rows, gemm_out, gemm_in, sequences, head_sizes, working_sets;
  int64_t heads;
  int64_t tokens;  // of attention: as many sequences as make them up, one at least
  int64_t exponentials;
  int64_t optimizer_parameters;  // whose states no cache keeps
};
const Sizes kOnProcessor{.gemm_rows = {8, 32, 128, 512, 2048},
                         .gemm_out = {32, 128, 512, 2048},
                         .gemm_in = {32, 128, 512, 2048},
                         .sequences = {64, 256, 1024},
                         .head_sizes = {32, 64, 128},
                         .working_sets = {16e3, 64e3, 256e3, 1e6, 4e6, 16e6, 64e6},
                         .heads = 4,
                         .tokens = 1,
                         .exponentials = 100'000,
                         .optimizer_parameters = 4'000'000};
// The largest of each fill an accelerator.
const Sizes kOnDevice{.gemm_rows = {8, 32, 128, 512, 2048, 8192},
                      .gemm_out = {32, 128, 512, 2048, 8192},
                      .gemm_in = {32, 128, 512, 2048, 8192},
                      .sequences = {64, 256, 1024, 4096},
                      .head_sizes = {32, 64, 128},
                      .working_sets = {64e3, 1e6, 4e6, 16e6, 64e6, 256e6, 1e9},
                      .heads = 16,
                      .tokens = 8192,
                      .exponentials = 64'000'000,
                      .optimizer_parameters = 64'000'000};
const Sizes& sizes_on(const BenchDevice& device) {
  return device.is_cpu() ? kOnProcessor : kOnDevice;
}
constexpr int64_t kHandful = 8;
const std::string kToDevice = "copy_to_device", kFromDevice = "copy_from_device";
constexpr int64_t kResidualElements = int64_t{1} << 20;

int64_t whole(double value) { return static_cast<int64_t>(value); }

BenchCurve gemm_curve(const std::string& suffix, const OperandsOn& on) {
  BenchCurve curve{"gemm" + suffix, "flops", {"m", "n", "k"}, {}};
  const Sizes& sizes = sizes_on(on.device);
  for (const double m : sizes.gemm_rows)
    for (const double n : sizes.gemm_out)
      for (const double k : sizes.gemm_in)
        curve.points.push_back({{m, n, k}, 2 * m * n * k, gemm(whole(m), whole(n), whole(k), on)});
  return curve;
}

BenchCurve attention_curve(const std::string& suffix, bool backward, const OperandsOn& on) {
  BenchCurve curve{(backward ? "attention_backward" : "attention") + suffix,
                   "flops",
                   {"sequence", "head_dim"},
                   {}};
  const Sizes& sizes = sizes_on(on.device);
  for (const double sequence : sizes.sequences)
    for (const double head : sizes.head_sizes) {
      const AttentionShape shape{.batch = std::max<int64_t>(1, sizes.tokens / whole(sequence)),
                                 .sequence = whole(sequence),
                                 .heads = sizes.heads,
                                 .head_dim = whole(head),
                                 .kv_heads = sizes.heads};
      curve.points.push_back(
          {{sequence, head}, shape.flops(backward), attention(shape, backward, on)});
    }
  return curve;
}

// The points of a measured curve as a grid: they are in row-major order.
cluster::Grid grid_of(const std::vector<cluster::Curve>& measured, const std::string& name) {
  const cluster::Curve* curve = cluster::find_curve(measured, name);
  PIPER_CHECK(curve != nullptr, "a curve was not measured");
  cluster::Grid grid{.axes = curve->axes};
  grid.points.resize(curve->axes.size());
  size_t cells = 1;
  for (size_t axis = 0; axis < curve->axes.size(); ++axis) {
    std::vector<double>& points = grid.points[axis];
    for (const cluster::CurvePoint& point : curve->points) points.push_back(point.at[axis]);
    std::ranges::sort(points);
    points.erase(std::ranges::unique(points).begin(), points.end());
    cells *= points.size();
  }
  PIPER_CHECK(cells == curve->points.size(), "a curve is no grid");
  for (const cluster::CurvePoint& point : curve->points) grid.rate.push_back(point.rate());
  return grid;
}

const cluster::CurvePoint& only_point(const std::vector<cluster::Curve>& measured,
                                      const std::string& name) {
  const cluster::Curve* curve = cluster::find_curve(measured, name);
  PIPER_CHECK(curve != nullptr && curve->points.size() == 1, "a point was not measured");
  return curve->points.front();
}

double elements_per_second(const cluster::CurvePoint& point) {
  return point.at.front() / point.timing.seconds;
}

}  // namespace

std::vector<BenchCurve> price_curves(strategy::Precision precision, const BenchDevice& device) {
  const OperandsOn on{device, executor::scalar_type(precision)};
  const std::string suffix = std::string(".") + strategy::name(precision);
  const auto element_bytes = static_cast<double>(at::elementSize(on.dtype));
  const Sizes& sizes = sizes_on(device);
  std::vector<BenchCurve> curves = {gemm_curve(suffix, on), attention_curve(suffix, false, on),
                                    attention_curve(suffix, true, on)};
  BenchCurve element_wise{"element_wise" + suffix, "bytes", {"bytes"}, {}};
  BenchCurve copy{"copy" + suffix, "bytes", {"bytes"}, {}};
  for (const double bytes : sizes.working_sets) {
    element_wise.points.push_back(
        {{bytes}, bytes, multiply_elements(whole(bytes / 3 / element_bytes), on)});
    copy.points.push_back({{bytes}, bytes, copy_bytes(whole(bytes), device, device)});
  }
  curves.push_back(std::move(element_wise));
  curves.push_back(std::move(copy));
  // Between the host's memory and the device's; a host has none.
  if (!device.is_cpu()) {
    const BenchDevice host;
    BenchCurve to{kToDevice + suffix, "bytes", {"bytes"}, {}};
    BenchCurve from{kFromDevice + suffix, "bytes", {"bytes"}, {}};
    for (const double bytes : {64e3, 1e6, 16e6, 256e6}) {
      to.points.push_back({{bytes}, bytes, copy_bytes(whole(bytes), host, device)});
      from.points.push_back({{bytes}, bytes, copy_bytes(whole(bytes), device, host)});
    }
    curves.push_back(std::move(to));
    curves.push_back(std::move(from));
  }
  const auto single = [&](const std::string& name, const std::string& unit, int64_t size,
                          double amount, Prepare prepare) {
    curves.push_back({name + suffix,
                      unit,
                      {"elements"},
                      {{{static_cast<double>(size)}, amount, std::move(prepare)}}});
  };
  single("operation", "bytes", kHandful, 3 * kHandful * element_bytes,
         multiply_elements(kHandful, on));
  single("exponential", "bytes", sizes.exponentials,
         2 * static_cast<double>(sizes.exponentials) * element_bytes, silu(sizes.exponentials, on));
  single("optimizer", "bytes", sizes.optimizer_parameters,
         static_cast<double>(sizes.optimizer_parameters) * adamw_bytes(on.dtype),
         adamw(sizes.optimizer_parameters, on));
  single("residuals", "bytes", kResidualElements, 2 * kResidualElements * element_bytes,
         find_residuals(kResidualElements, on));
  return curves;
}

void fill_prices(const std::vector<cluster::Curve>& measured, strategy::Precision precision,
                 bool first, cluster::Cluster& cluster) {
  const std::string suffix = std::string(".") + strategy::name(precision);
  cluster::Compute& compute = cluster.compute[strategy::name(precision)];
  compute.gemm = grid_of(measured, "gemm" + suffix);
  compute.attention = grid_of(measured, "attention" + suffix);
  compute.attention_backward = grid_of(measured, "attention_backward" + suffix);
  compute.peak_flops_per_second = *std::ranges::max_element(compute.gemm.rate);
  if (!first) return;
  cluster.element_wise = grid_of(measured, "element_wise" + suffix);
  cluster.copy = grid_of(measured, "copy" + suffix);
  cluster.memory_bytes_per_second = cluster.element_wise.rate.back();
  cluster.fixed_task_seconds = only_point(measured, "operation" + suffix).timing.seconds;
  cluster.numbers["exponential_elements_per_second"] =
      elements_per_second(only_point(measured, "exponential" + suffix));
  cluster.numbers["optimizer_bytes_per_second"] = only_point(measured, "optimizer" + suffix).rate();
  const auto to_host = cluster::find_curve(measured, kFromDevice + suffix);
  const auto from_host = cluster::find_curve(measured, kToDevice + suffix);
  if (to_host != nullptr && from_host != nullptr)
    cluster.numbers[cost::kHostRateName] =
        std::min(to_host->points.back().rate(), from_host->points.back().rate());
  cluster.numbers[cost::kResidualRateName] =
      kResidualElements / only_point(measured, "residuals" + suffix).timing.seconds;
}

}  // namespace piper::profile
