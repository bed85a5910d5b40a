#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/suggest.h>
#include <piper/cost/load_distribution.h>
#include <piper/cost/random.h>
#include <piper/cost/trace_file.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>

namespace piper::cost {
namespace {

constexpr const char* kAllowed =
    "balanced, zipf:S, hot-expert:F, hot-rank:F, drift:S, trace:FILE (S from 0 to 10, F from 1 to "
    "1000000)";

double parameter_of(const std::string& text, const std::string& digits, double least, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() ||
      !(value >= least && value <= most))
    throw InvalidInput(fmt::format("load is '{}'; allowed: {}", text, kAllowed));
  return value;
}

void normalise(std::vector<double>& share) {
  const double sum = std::accumulate(share.begin(), share.end(), 0.0);
  for (double& part : share) part /= sum;
}

// One expert of a layer, or one ep index, stands out: `count` of `experts` from `first` receive
// `factor` times their even share.
std::vector<double> with_hot(int64_t experts, int64_t first, int64_t count, double factor) {
  const auto n = static_cast<double>(experts), hot = static_cast<double>(count);
  std::vector<double> share(static_cast<size_t>(experts),
                            experts > count ? (1 - factor * hot / n) / (n - hot) : 0);
  std::fill_n(share.begin() + first, count, factor / n);
  return share;
}

struct Drawing {
  const LoadDistribution& distribution;
  const model::Model& model;
  int64_t ep;
  uint64_t seed;
  int64_t index;
  std::vector<size_t> steps = {};          // of a trace, those that are read
  std::vector<double> by_popularity = {};  // of zipf, the shares in descending order
};

// The steps of a trace whose experts are as many as the model's, or as close to it as there are.
std::vector<size_t> steps_for(const LoadDistribution& load, int64_t experts) {
  std::vector<size_t> steps;
  double nearest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < load.trace.size(); ++i) {
    const auto traced = static_cast<double>(load.trace[i].front().size());
    const double distance = std::abs(std::log(traced / static_cast<double>(experts)));
    if (distance < nearest) steps.clear();
    nearest = std::min(nearest, distance);
    if (distance == nearest) steps.push_back(i);
  }
  return steps;
}

// The shares in descending order, read at the middles of so many equal parts, and dealt out in an
// order that holds for a layer: neighbours in the order would share a rank.
std::vector<double> stretched(std::vector<double> share, int64_t experts, Random random) {
  std::ranges::sort(share, std::greater<>());
  std::vector<double> result(static_cast<size_t>(experts));
  const double last = static_cast<double>(share.size()) - 1;
  for (size_t i = 0; i < result.size(); ++i) {
    const double part = (static_cast<double>(i) + 0.5) / static_cast<double>(experts);
    const double at = std::clamp(part * static_cast<double>(share.size()) - 0.5, 0.0, last);
    const auto below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, share.size() - 1);
    result[i] = std::lerp(share[below], share[above], at - static_cast<double>(below));
  }
  // Only a few experts had any rows, and the middles miss them.
  if (std::accumulate(result.begin(), result.end(), 0.0) <= 0) result.front() = 1;
  normalise(result);
  for (size_t k = result.size(); k > 1; --k) std::swap(result[k - 1], result[random.below(k)]);
  return result;
}

void check_factor(const Drawing& d, int64_t parts, const char* of) {
  if (d.distribution.parameter > static_cast<double>(parts))
    throw InvalidInput(fmt::format("load is '{}', more than all rows; allowed: 1 to {}, the {}",
                                   d.distribution.text, parts, of));
}

std::vector<double> zipf(Drawing& d, int64_t experts, Random random) {
  if (std::ssize(d.by_popularity) != experts) {
    d.by_popularity.resize(static_cast<size_t>(experts));
    for (size_t k = 0; k < d.by_popularity.size(); ++k)
      d.by_popularity[k] = std::pow(static_cast<double>(k + 1), -d.distribution.parameter);
    normalise(d.by_popularity);
  }
  std::vector<double> share = d.by_popularity;
  for (size_t k = share.size(); k > 1; --k) std::swap(share[k - 1], share[random.below(k)]);
  return share;
}

// Every expert's logarithm is a stationary process of its own, followed from its start.
std::vector<double> drift(const Drawing& d, int64_t experts, Random random) {
  std::vector<double> x(static_cast<size_t>(experts));
  for (double& value : x) value = random.normal();
  const double fresh = std::sqrt(1 - kDriftMemory * kDriftMemory);
  for (int64_t step = 0; step < d.index; ++step)
    for (double& value : x) value = kDriftMemory * value + fresh * random.normal();
  for (double& value : x) value = std::exp(d.distribution.parameter * value);
  normalise(x);
  return x;
}

std::vector<double> from_trace(const Drawing& d, int64_t experts, int64_t mixture_layer,
                               int64_t num_samples) {
  const auto steps = std::ssize(d.steps);
  const auto step = static_cast<size_t>(
      num_samples > 1 ? std::min(steps - 1, d.index * (steps - 1) / (num_samples - 1)) : 0);
  const auto& layers = d.distribution.trace[d.steps[step]];
  const std::vector<double>& share = layers[static_cast<size_t>(mixture_layer) % layers.size()];
  if (std::ssize(share) == experts) return share;
  return stretched(share, experts, Random({d.seed, static_cast<uint64_t>(mixture_layer)}));
}

std::vector<double> of_layer(Drawing& d, int64_t layer, int64_t mixture_layer,
                             int64_t num_samples) {
  const int64_t experts = d.model.layers[static_cast<size_t>(layer)].feed_forward.num_experts;
  const auto at = static_cast<uint64_t>(layer), sample = static_cast<uint64_t>(d.index);
  switch (d.distribution.kind) {
    case LoadKind::kUniform:
      return {};
    case LoadKind::kZipf:
      return zipf(d, experts, Random({d.seed, at, sample}));
    case LoadKind::kHotExpert:
      check_factor(d, experts, "experts");
      return with_hot(
          experts,
          static_cast<int64_t>(Random({d.seed, at, sample}).below(static_cast<uint64_t>(experts))),
          1, d.distribution.parameter);
    case LoadKind::kHotRank: {
      // One rank has everything: nothing is hot.
      if (d.ep == 1) return {};
      check_factor(d, d.ep, "ranks that share the experts");
      const int64_t count = experts / d.ep;
      const uint64_t hot = Random({d.seed, sample}).below(static_cast<uint64_t>(d.ep));
      return with_hot(experts, static_cast<int64_t>(hot) * count, count, d.distribution.parameter);
    }
    case LoadKind::kDrift:
      return drift(d, experts, Random({d.seed, at}));
    case LoadKind::kTrace:
      return from_trace(d, experts, mixture_layer, num_samples);
  }
  return {};
}

}  // namespace

LoadDistribution parse_load(const std::string& text) {
  LoadDistribution load{.text = text};
  const size_t colon = text.find(':');
  const std::string word = text.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  if ((word == "balanced" || word == "uniform") && colon == std::string::npos) return load;
  if (word == "trace" && !rest.empty()) {
    std::error_code error;
    if (!std::filesystem::exists(rest, error))
      throw InvalidInput(fmt::format("load is '{}': no such file", text));
    load.kind = LoadKind::kTrace;
    load.trace = parse_load_trace(read_trace_file(rest), rest);
    return load;
  }
  for (const auto& [known, kind, least, most] : {std::tuple("zipf", LoadKind::kZipf, 0.0, 10.0),
                                                 {"drift", LoadKind::kDrift, 0.0, 10.0},
                                                 {"hot-expert", LoadKind::kHotExpert, 1.0, 1e6},
                                                 {"hot-rank", LoadKind::kHotRank, 1.0, 1e6}})
    if (word == known) {
      load.kind = kind;
      load.parameter = parameter_of(text, rest, least, most);
      return load;
    }
  const std::vector<std::string> words = {"balanced", "zipf",  "hot-expert",
                                          "hot-rank", "drift", "trace"};
  throw InvalidInput(
      fmt::format("load is '{}'; allowed: {}{}", text, kAllowed, did_you_mean(word, words)));
}

ExpertLoad sample_load(const LoadDistribution& distribution, const model::Model& model, int64_t ep,
                       uint64_t seed, int64_t index, int64_t num_samples) {
  ExpertLoad load;
  if (distribution.kind == LoadKind::kUniform) return load;
  Drawing drawing{distribution, model, ep, seed, index};
  if (distribution.kind == LoadKind::kTrace && model.num_experts() > 0)
    drawing.steps = steps_for(distribution, model.num_experts());
  load.share.resize(model.layers.size());
  bool any = false;
  int64_t mixture_layer = 0;
  for (int64_t layer = 0; layer < std::ssize(model.layers); ++layer) {
    if (!model.layers[static_cast<size_t>(layer)].feed_forward.is_moe()) continue;
    std::vector<double>& share = load.share[static_cast<size_t>(layer)];
    share = of_layer(drawing, layer, mixture_layer++, num_samples);
    any = any || !share.empty();
  }
  if (!any) load.share.clear();
  return load;
}

std::string stretch_of(const LoadDistribution& distribution, const model::Model& model) {
  if (distribution.kind != LoadKind::kTrace || model.num_experts() == 0) return "";
  const auto experts = model.num_experts();
  const auto traced = static_cast<int64_t>(
      distribution.trace[steps_for(distribution, experts).front()].front().size());
  if (traced == experts) return "";
  return fmt::format("{} experts of the trace {} {}", traced,
                     traced < experts ? "stretched over" : "drawn together to", experts);
}

double imbalance_of(const ExpertLoad& load, int64_t ep) {
  const auto ranks = static_cast<size_t>(ep);
  double sum = 0, layers = 0;
  std::vector<double> rows(ranks);
  for (size_t layer = 0; layer < load.share.size(); ++layer) {
    const std::vector<double>& share = load.share[layer];
    if (share.empty()) continue;
    const auto placed = load.placements.find(static_cast<int32_t>(layer));
    const size_t held = share.size() / ranks;
    std::ranges::fill(rows, 0.0);
    if (placed == load.placements.end()) {
      for (size_t rank = 0; rank < ranks; ++rank)
        for (size_t e = rank * held; e < (rank + 1) * held; ++e) rows[rank] += share[e];
    } else {
      for (size_t e = 0; e < share.size(); ++e)
        rows[static_cast<size_t>(placed->second.rank_of(static_cast<int64_t>(e)))] += share[e];
    }
    sum += std::ranges::max(rows) * static_cast<double>(ep);
    ++layers;
  }
  return layers > 0 ? std::max(1.0, sum / layers) : 1;
}

ExpertLoad busy_rank_load(const model::Model& model, int64_t ep, double imbalance) {
  const LoadDistribution hot{
      .kind = LoadKind::kHotRank, .parameter = imbalance, .text = "", .trace = {}};
  return sample_load(load_at(hot, ep), model, ep, 0, 0, 1);
}

LoadDistribution load_at(const LoadDistribution& load, int64_t ep) {
  LoadDistribution at = load;
  if (load.kind == LoadKind::kHotRank)
    at.parameter = std::min(load.parameter, static_cast<double>(ep));
  return at;
}

std::map<int64_t, double> expected_imbalances(const LoadDistribution& load,
                                              const model::Model& model,
                                              const std::vector<int64_t>& eps) {
  std::map<int64_t, double> by_ep;
  for (const int64_t ep : eps) by_ep[ep] = 0;
  const bool knows_ranks = load.kind == LoadKind::kHotRank;  // else all ep share the draws
  for (int64_t sample = 0; sample < kExpectedSamples; ++sample) {
    ExpertLoad drawn;
    if (!knows_ranks) drawn = sample_load(load, model, 1, 0, sample, kExpectedSamples);
    for (auto& [ep, mean] : by_ep) {
      if (knows_ranks)
        drawn = sample_load(load_at(load, ep), model, ep, 0, sample, kExpectedSamples);
      mean += imbalance_of(drawn, ep) / static_cast<double>(kExpectedSamples);
    }
  }
  return by_ep;
}

double expected_imbalance(const LoadDistribution& load, const model::Model& model, int64_t ep) {
  return model.num_moe_layers() == 0 ? 1 : expected_imbalances(load, model, {ep}).at(ep);
}

double expected_busiest_expert(const LoadDistribution& load, const model::Model& model) {
  if (model.num_moe_layers() == 0) return 1;
  const LoadDistribution all = load_at(load, 1);
  double mean = 0;
  for (int64_t sample = 0; sample < kExpectedSamples; ++sample) {
    double busiest = 1;
    for (const std::vector<double>& share :
         sample_load(all, model, 1, 0, sample, kExpectedSamples).share)
      if (!share.empty())
        busiest = std::max(busiest, std::ranges::max(share) * static_cast<double>(share.size()));
    mean += busiest / static_cast<double>(kExpectedSamples);
  }
  return mean;
}

MeanP95Worst spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto n = static_cast<double>(values.size());
  const auto at = static_cast<size_t>(std::ceil(0.95 * n)) - 1;
  return {.mean = std::accumulate(values.begin(), values.end(), 0.0) / n,
          .p95 = values[at],
          .worst = values.back()};
}

const char* name(Statistic statistic) {
  switch (statistic) {
    case Statistic::kMean:
      return "mean";
    case Statistic::kP95:
      return "p95";
    case Statistic::kWorst:
      return "worst";
  }
  return "?";
}

double value(const MeanP95Worst& spread, Statistic statistic) {
  switch (statistic) {
    case Statistic::kMean:
      return spread.mean;
    case Statistic::kP95:
      return spread.p95;
    case Statistic::kWorst:
      return spread.worst;
  }
  return 0;
}

}  // namespace piper::cost
