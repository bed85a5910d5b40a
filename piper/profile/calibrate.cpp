#include <ATen/Parallel.h>
#include <piper/base/error.h>
#include <piper/base/median.h>
#include <piper/cost/segment_time.h>
#include <piper/executor/clock.h>
#include <piper/executor/cores.h>
#include <piper/executor/device_streams.h>
#include <piper/executor/tensor_bytes.h>
#include <piper/nn/aten.h>
#include <piper/profile/calibrate.h>
#include <piper/profile/reference_layers.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

namespace piper::profile {
namespace {

using schedule::SegmentKind;

// Sequences of a micro-batch; of an accelerator's longer ones (5 GB in fp32).
constexpr std::array<int64_t, 3> kBatches{1, kReferencePassSequences, 8}, kBatchesOnDevice{1, 2, 4};
const std::array<int64_t, 3>& batches_on(const BenchDevice& device) {
  return device.is_cpu() ? kBatches : kBatchesOnDevice;
}

struct Measured {                        // seconds
  std::vector<SegmentSamples> segments;  // by batch; ascending
  double window = 0;                     // reference_window_seconds; 0 where there are none
  double rank_scatter = 0;               // of ranks within windows
};

// Repeats from a window to the next, and from the first window to the third.
constexpr int64_t kRepeatsOfWindow = 3, kFewestRepeats = 2 * kRepeatsOfWindow;

// Without the longest of a hundred: those are the host's stalls. Ascending.
double mean_without_stalls(const std::vector<double>& values) {
  const size_t n = values.size() - values.size() / 100;
  return std::accumulate(values.begin(), values.begin() + static_cast<ptrdiff_t>(n), 0.0) /
         static_cast<double>(n);
}

// How unequal ranks are throughout a window, where their tasks' own scatter is all but averaged
// out: the standard deviation of logarithms about each window's mean.
double scatter_of_ranks(const std::vector<std::vector<double>>& windows_of_ranks) {
  double squares = 0, freedom = 0;
  for (const std::vector<double>& ranks : windows_of_ranks) {
    double sum = 0;
    for (const double seconds : ranks) sum += std::log(seconds);
    const double mean = sum / static_cast<double>(ranks.size());
    for (const double seconds : ranks) squares += std::pow(std::log(seconds) - mean, 2);
    freedom += static_cast<double>(ranks.size() - 1);
  }
  return freedom > 0 ? std::sqrt(squares / freedom) : 0;
}

// As if the machine had run all the time as fast as in the median window: each sample was taken
// near one of the windows.
Measured at_one_speed(const std::vector<std::vector<SegmentSamples>>& by_window,
                      const std::vector<double>& windows) {
  Measured measured{.segments = std::vector<SegmentSamples>(std::size(kBatches)),
                    .window = median(windows)};
  for (size_t w = 0; w < windows.size(); ++w)
    for (size_t i = 0; i < measured.segments.size(); ++i)
      for (const auto& [key, values] : by_window[w][i])
        for (const double value : values)
          measured.segments[i][key].push_back(value * measured.window / windows[w]);
  for (SegmentSamples& segments : measured.segments)
    for (auto& [key, values] : segments) std::ranges::sort(values);
  return measured;
}

// What each segment of a pass took, by kind, over layers, repeats and ranks, all ranks running at
// once. The batches and the windows take turns, so that a machine whose speed drifts gives all of
// them the same.
Measured measure(const Reference& reference, strategy::Precision precision,
                 const CalibrateOptions& options) {
  const auto num_ranks = static_cast<size_t>(options.num_ranks);
  std::vector<std::vector<double>> windows(
      static_cast<size_t>(options.num_repeats / kRepeatsOfWindow + 1),
      std::vector<double>(num_ranks));
  std::vector<std::vector<SegmentSamples>> by_window(
      windows.size(), std::vector<SegmentSamples>(std::size(kBatches)));
  std::mutex mutex;
  executor::Cores cores = executor::cores_for(options.num_cores, options.num_ranks);
  std::barrier together(options.num_ranks);
  const auto turn = [&](ReferenceLayers& layers, SegmentSamples* into) {
    together.arrive_and_wait();
    const executor::Cores::Hold core(cores);
    const SegmentSamples seconds = layers.run();
    if (into == nullptr) return;  // first touch
    const std::lock_guard lock(mutex);
    for (const auto& [key, values] : seconds) {
      std::vector<double>& samples = (*into)[key];
      samples.insert(samples.end(), values.begin(), values.end());
    }
  };
  const auto window_of = [&](int64_t repeat) {  // the one taken before it or just after
    const auto next = static_cast<size_t>((repeat + kRepeatsOfWindow / 2) / kRepeatsOfWindow);
    return std::min(next, windows.size() - 1);
  };
  const double start = executor::now_seconds();
  const auto note = [&](int64_t repeat) {
    if (options.progress) options.progress(repeat, options.num_repeats);
  };
  size_t num_windows = 0;
  bool is_late = false;
  const auto body = [&](size_t rank) {
    at::set_num_threads(1);
    std::vector<std::unique_ptr<ReferenceLayers>> layers;
    for (const int64_t sequences : kBatches)
      layers.push_back(std::make_unique<ReferenceLayers>(reference, precision, sequences));
    for (int64_t repeat = 0; repeat <= options.num_repeats; ++repeat) {
      for (size_t i = 0; i < layers.size(); ++i)
        turn(*layers[i], repeat == 0 ? nullptr : &by_window[window_of(repeat)][i]);
      if (rank == 0) note(repeat);
      if (repeat % kRepeatsOfWindow != 0) continue;
      together.arrive_and_wait();
      windows[window_of(repeat)][rank] = reference_window_seconds(precision, cores);
      if (rank == 0) {
        num_windows = window_of(repeat) + 1;
        is_late =
            repeat >= kFewestRepeats && executor::now_seconds() - start > options.budget_seconds;
      }
      together.arrive_and_wait();
      if (is_late) break;
    }
  };
  std::vector<std::thread> threads;
  for (size_t r = 0; r < num_ranks; ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
  windows.resize(num_windows);
  by_window.resize(num_windows);
  note(options.num_repeats);
  std::vector<double> means;
  for (const std::vector<double>& ranks : windows)
    means.push_back(std::accumulate(ranks.begin(), ranks.end(), 0.0) /
                    static_cast<double>(num_ranks));
  Measured measured = at_one_speed(by_window, means);
  measured.rank_scatter = scatter_of_ranks(windows);
  return measured;
}

// Assumed to be enough there: nothing else runs on it.
constexpr int64_t kRepeatsOnDevice = 8;

// The same of one rank on an accelerator, without windows.
Measured measure_on_device(const Reference& reference, strategy::Precision precision,
                           const CalibrateOptions& options) {
  PIPER_CHECK(options.num_ranks == 1, "an accelerator has one rank");
  const executor::OnDevice on_device(options.device.device);
  Measured measured{.segments = std::vector<SegmentSamples>(kBatchesOnDevice.size())};
  for (size_t i = 0; i < kBatchesOnDevice.size(); ++i) {
    ReferenceLayers layers(reference, precision, kBatchesOnDevice[i], options.device);
    layers.run();  // first touch
    for (int64_t repeat = 0; repeat < std::min(options.num_repeats, kRepeatsOnDevice); ++repeat)
      for (const auto& [key, values] : layers.run()) {
        std::vector<double>& samples = measured.segments[i][key];
        samples.insert(samples.end(), values.begin(), values.end());
      }
    for (auto& [key, values] : measured.segments[i]) std::ranges::sort(values);
  }
  return measured;
}

// What a core loses from holder to holder: ranks that outnumber the cores take turns at a little
// work. The median of several rounds.
double hand_over_seconds(const CalibrateOptions& options) {
  constexpr int kRounds = 5, kTurns = 100;
  constexpr double kWork = 300e-6;  // seconds; a small segment
  std::vector<double> lost;
  for (int round = 0; round < kRounds; ++round) {
    executor::Cores cores = executor::cores_for(options.num_cores, options.num_ranks);
    const auto body = [&] {
      for (int turn = 0; turn < kTurns; ++turn) {
        const executor::Cores::Hold core(cores);
        for (const double start = executor::now_seconds(); executor::now_seconds() - start < kWork;)
          continue;
      }
    };
    const double start = executor::now_seconds();
    std::vector<std::thread> threads;
    for (int64_t r = 0; r < options.num_ranks; ++r) threads.emplace_back(body);
    for (std::thread& thread : threads) thread.join();
    const double turns =
        static_cast<double>(kTurns * options.num_ranks) / static_cast<double>(options.num_cores);
    lost.push_back((executor::now_seconds() - start) / turns - kWork);
  }
  return std::max(0.0, median(lost));
}

// The standard deviation of the logarithms. Stalls count: an exchange waits for them, too.
double scatter_of(const std::vector<double>& seconds) {
  double sum = 0, squares = 0;
  for (const double one : seconds) {
    sum += std::log(one);
    squares += std::log(one) * std::log(one);
  }
  const auto n = static_cast<double>(seconds.size());
  return std::sqrt(std::max(0.0, squares / n - sum / n * (sum / n)));
}

}  // namespace

void calibrate_segments(cluster::Cluster& cluster, strategy::Precision precision,
                        const CalibrateOptions& options) {
  const Reference& reference =
      options.reference != nullptr ? *options.reference : reference_for(options.device);
  const model::Model& model = reference.model;
  const model::FeedForward& mixture = model.layers.front().feed_forward;
  std::map<SegmentKey, double> log_ratios;
  double total = 0, scattered = 0;
  const Measured measured = options.device.is_cpu()
                                ? measure(reference, precision, options)
                                : measure_on_device(reference, precision, options);
  if (measured.window > 0) cluster.numbers[reference_pass_name(precision)] = measured.window;
  for (size_t i = 0; i < measured.segments.size(); ++i) {
    const int64_t sequences = batches_on(options.device)[i];
    cost::SegmentWork work;
    work.sequences = sequences;
    work.sequence = reference.sequence;
    work.rows = work.received_rows = work.tokens() * mixture.top_k;
    work.local_experts = mixture.num_experts;
    work.largest_expert_rows = work.rows / work.local_experts;
    work.element_bytes = static_cast<int64_t>(at::elementSize(executor::scalar_type(precision)));
    for (const auto& [key, samples] : measured.segments[i]) {
      const auto [kind, phase] = key;
      const double seconds = mean_without_stalls(samples);  // scattered simulations keep the mean
      total += seconds;
      scattered += seconds * scatter_of(samples);
      const bool in_layers = kind != SegmentKind::kEmbedding && kind != SegmentKind::kHead;
      const double priced =
          cost::segment_seconds(model, {kind, in_layers ? 0 : -1}, phase, work, cluster, precision);
      if (priced > 0)
        log_ratios[key] += std::log(seconds / priced) / static_cast<double>(kBatches.size());
    }
  }
  for (const auto& [key, log_ratio] : log_ratios)
    cluster.numbers[cost::measured_over_priced_name(key.first, key.second, precision)] =
        std::exp(log_ratio);
  if (options.num_ranks > options.num_cores && options.num_cores > 0)
    cluster.numbers[cost::kCoreHandOverName] = hand_over_seconds(options);
  if (total <= 0) return;
  const double all = scattered / total, ranks = std::min(measured.rank_scatter, all);
  cluster.numbers[cost::kTaskScatterName] = std::sqrt(all * all - ranks * ranks);
  // One rank differs from no other: the number has no meaning and is left out.
  if (options.num_ranks > 1) cluster.numbers[cost::kRankScatterName] = ranks;
}

}  // namespace piper::profile
