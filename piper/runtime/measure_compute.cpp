#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/nn/kernels.h>
#include <piper/nn/product.h>
#include <piper/runtime/cores.h>
#include <piper/runtime/measure_compute.h>
#include <piper/runtime/player.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

namespace piper::runtime {
namespace {

constexpr double kRotatedBytes = 24e6;  // larger than a core's private caches

const std::vector<double> kGemmRows = {8, 32, 128, 512, 2048};
const std::vector<double> kGemmOut = {32, 128, 512, 2048};
const std::vector<double> kGemmIn = {32, 128, 512, 2048};
const std::vector<double> kSequences = {64, 256, 1024};
const std::vector<double> kHeadSizes = {32, 64, 128};
const std::vector<double> kWorkingSets = {16e3, 64e3, 256e3, 1e6, 4e6, 16e6, 64e6};

// One thing to measure: made once per rank (allocating its operands), then called repeatedly.
struct Point {
  std::string what;
  std::function<std::function<void()>()> prepare;
};

double median(std::vector<double> values) {
  PIPER_CHECK(!values.empty());
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Seconds of one call: repeats for about `budget`, at least three times, and averages the faster half.
double time_calls(const std::function<void()>& call, double budget) {
  call();  // warm-up: first touch, thread-local state of the BLAS
  std::vector<double> seconds;
  const double start = now_seconds();
  do {
    const double before = now_seconds();
    call();
    seconds.push_back(now_seconds() - before);
  } while (seconds.size() < 3 || now_seconds() - start < budget);
  std::ranges::sort(seconds);
  const size_t half = (seconds.size() + 1) / 2;
  double sum = 0;
  for (size_t i = 0; i < half; ++i) sum += seconds[i];
  return sum / static_cast<double>(half);
}

// Seconds of every point, median over ranks.
std::vector<double> measure(const std::vector<Point>& points, const MeasureOptions& options) {
  const auto num_ranks = static_cast<size_t>(options.num_ranks);
  std::vector<std::vector<double>> seconds(points.size(), std::vector<double>(num_ranks));
  Cores cores(std::min(options.num_cores, options.num_ranks));
  std::barrier together(options.num_ranks);
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto body = [&](size_t rank) {
    at::set_num_threads(1);
    for (size_t i = 0; i < points.size(); ++i) {
      try {
        const std::function<void()> call = points[i].prepare();
        together.arrive_and_wait();
        const Cores::Hold core(cores);
        seconds[i][rank] = time_calls(call, options.seconds_per_point);
      } catch (...) {
        const std::lock_guard lock(failure_mutex);
        if (!failure) failure = std::current_exception();
        together.arrive_and_drop();
        return;
      }
      if (rank == 0 && options.progress)
        options.progress(points[i].what, static_cast<int64_t>(i + 1),
                         static_cast<int64_t>(points.size()));
    }
  };
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < num_ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  std::vector<double> medians;
  for (const std::vector<double>& of_ranks : seconds) medians.push_back(median(of_ranks));
  return medians;
}

Point gemm_point(int64_t m, int64_t n, int64_t k, at::ScalarType dtype) {
  return {"GEMM", [=] {
            const auto copies = static_cast<int64_t>(std::clamp(
                kRotatedBytes /
                    (static_cast<double>(n * k) * static_cast<double>(at::elementSize(dtype))),
                1.0, 64.0));
            auto x = at::ones({m, k}, dtype), y = at::empty({m, n}, dtype);
            auto weights = at::ones({copies, n, k}, dtype);
            int64_t next = 0;
            return std::function<void()>([=]() mutable {
              nn::product_out(y, x, weights[next].t());
              next = (next + 1) % copies;
            });
          }};
}

constexpr int64_t kAttentionHeads = 4;

Point attention_point(int64_t sequence, int64_t head_size, bool backward, at::ScalarType dtype) {
  return {"attention", [=] {
            auto q = at::rand({1, kAttentionHeads, sequence, head_size}, dtype);
            auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, true);
            if (!backward)
              return std::function<void()>(
                  [=] { at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, true); });
            return std::function<void()>([=, out = out, lse = lse] {
              at::_scaled_dot_product_flash_attention_for_cpu_backward(out, q, q, q, out, lse, 0.0,
                                                                       true);
            });
          }};
}

Point element_wise_point(double bytes, at::ScalarType dtype) {
  return {"element-wise", [=] {
            const auto n =
                static_cast<int64_t>(bytes / 3 / static_cast<double>(at::elementSize(dtype)));
            auto a = at::ones({n}, dtype), b = at::ones({n}, dtype), c = at::empty({n}, dtype);
            return std::function<void()>([=]() mutable { at::mul_out(c, a, b); });
          }};
}

Point copy_point(double bytes) {
  return {"copy", [=] {
            auto from = at::ones({static_cast<int64_t>(bytes)}, at::kByte);
            auto to = at::empty_like(from);
            return std::function<void()>([=]() mutable {
              std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<size_t>(bytes));
            });
          }};
}

// A rank's share of parameters that no cache keeps.
constexpr int64_t kOptimizerParameters = 2'000'000;
constexpr double kOptimizerBytes = 7 * 4;  // g, m, v and w read; m, v and w written

Point optimizer_point() {
  return {"optimizer", [] {
            const auto zeros = [] { return at::zeros({kOptimizerParameters}, at::kFloat); };
            auto w = zeros(), g = zeros(), m = zeros(), v = zeros();
            return std::function<void()>([=] {
              nn::kernels::adamw<float>(w.data_ptr<float>(), g.data_ptr<float>(),
                                        m.data_ptr<float>(), v.data_ptr<float>(), w.numel(),
                                        {.keep = 1,
                                         .one_minus_beta1 = 0.1F,
                                         .beta2 = 0.9F,
                                         .one_minus_beta2 = 0.1F,
                                         .step_size = 1e-3F,
                                         .inverse_root_correction2 = 1,
                                         .epsilon = 1e-8F,
                                         .gradient_scale = 1});
            });
          }};
}

// Fills a grid's rates from the seconds of its points, in order.
template <class Amount>
void fill(cluster::Grid& grid, std::vector<double>::const_iterator& seconds, const Amount& amount) {
  size_t total = 1;
  for (const std::vector<double>& axis : grid.points) total *= axis.size();
  std::vector<double> at(grid.axes.size());
  for (size_t i = 0; i < total; ++i) {
    size_t rest = i;
    for (size_t axis = grid.axes.size(); axis-- > 0;) {
      at[axis] = grid.points[axis][rest % grid.points[axis].size()];
      rest /= grid.points[axis].size();
    }
    grid.rate.push_back(amount(at) / *seconds++);
  }
}

}  // namespace

ComputeRates measure_compute(strategy::Precision precision, const MeasureOptions& options) {
  const at::ScalarType dtype = scalar_type(precision);
  std::vector<Point> points;
  for (const double m : kGemmRows)
    for (const double n : kGemmOut)
      for (const double k : kGemmIn)
        points.push_back(gemm_point(static_cast<int64_t>(m), static_cast<int64_t>(n),
                                    static_cast<int64_t>(k), dtype));
  for (const bool backward : {false, true})
    for (const double sequence : kSequences)
      for (const double head : kHeadSizes)
        points.push_back(attention_point(static_cast<int64_t>(sequence), static_cast<int64_t>(head),
                                         backward, dtype));
  for (const double bytes : kWorkingSets) points.push_back(element_wise_point(bytes, dtype));
  for (const double bytes : kWorkingSets) points.push_back(copy_point(bytes));
  points.push_back({"operation", [=] {
                      auto a = at::ones({8}, dtype), c = at::empty({8}, dtype);
                      return std::function<void()>([=]() mutable { at::mul_out(c, a, a); });
                    }});
  constexpr int64_t kExponentials = 100000;
  points.push_back({"exponential", [=] {
                      auto a = at::ones({kExponentials}, dtype),
                           c = at::empty({kExponentials}, dtype);
                      return std::function<void()>([=]() mutable { at::silu_out(c, a); });
                    }});
  points.push_back(optimizer_point());

  const std::vector<double> seconds = measure(points, options);
  auto next = seconds.begin();
  ComputeRates rates;
  rates.compute.gemm = {{"m", "n", "k"}, {kGemmRows, kGemmOut, kGemmIn}, {}};
  fill(rates.compute.gemm, next,
       [](const std::vector<double>& at) { return 2 * at[0] * at[1] * at[2]; });
  // Causal: half of the s^2 scores; QK^T and PV forward; backward counts twice that, as MFU does (the kernel recomputes QK^T besides).
  for (cluster::Grid* grid : {&rates.compute.attention, &rates.compute.attention_backward}) {
    *grid = {{"sequence", "head_dim"}, {kSequences, kHeadSizes}, {}};
    const double products = grid == &rates.compute.attention ? 2 : 4;
    fill(*grid, next, [&](const std::vector<double>& at) {
      return products * 2 * kAttentionHeads * at[0] * at[0] / 2 * at[1];
    });
  }
  rates.element_wise = {{"bytes"}, {kWorkingSets}, {}};
  fill(rates.element_wise, next, [](const std::vector<double>& at) { return at[0]; });
  rates.copy = {{"bytes"}, {kWorkingSets}, {}};
  fill(rates.copy, next, [](const std::vector<double>& at) { return at[0]; });
  rates.fixed_task_seconds = *next++;
  rates.exponential_elements_per_second = kExponentials / *next++;
  rates.optimizer_bytes_per_second =
      static_cast<double>(kOptimizerParameters) * kOptimizerBytes / *next++;
  rates.compute.peak_flops_per_second = *std::ranges::max_element(rates.compute.gemm.rate);
  return rates;
}

}  // namespace piper::runtime
