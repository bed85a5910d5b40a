#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/suggest.h>
#include <piper/cost/load_distribution.h>
#include <piper/cost/random.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>

namespace piper::cost {
namespace {

constexpr const char* kAllowed =
    "uniform, zipf:S, hot-expert:F, hot-rank:F, drift:S, trace:FILE (S from 0 to 10, F from 1 to "
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
};

void check_factor(const Drawing& d, int64_t parts, const char* of) {
  if (d.distribution.parameter > static_cast<double>(parts))
    throw InvalidInput(fmt::format("load is '{}', more than all rows; allowed: 1 to {}, the {}",
                                   d.distribution.text, parts, of));
}

std::vector<double> zipf(const Drawing& d, int64_t experts, Random random) {
  std::vector<double> share(static_cast<size_t>(experts));
  for (size_t k = 0; k < share.size(); ++k)
    share[k] = std::pow(static_cast<double>(k + 1), -d.distribution.parameter);
  normalise(share);
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
  const auto steps = static_cast<int64_t>(d.distribution.trace.size());
  const auto step = static_cast<size_t>(
      num_samples > 1 ? std::min(steps - 1, d.index * (steps - 1) / (num_samples - 1)) : 0);
  const auto& layers = d.distribution.trace[step];
  const std::vector<double>& share = layers[static_cast<size_t>(mixture_layer) % layers.size()];
  if (std::ssize(share) != experts)
    throw InvalidInput(fmt::format("load is '{}' with {} experts a layer; allowed: the {} of {}",
                                   d.distribution.text, share.size(), experts, d.model.name));
  return share;
}

std::vector<double> of_layer(const Drawing& d, int64_t layer, int64_t mixture_layer,
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
  if (word == "uniform" && colon == std::string::npos) return load;
  if (word == "trace" && !rest.empty()) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(rest, error))
      throw InvalidInput(fmt::format("load is '{}': no such file", text));
    load.kind = LoadKind::kTrace;
    load.trace = parse_load_trace(read_text_file(rest), rest);
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
  const std::vector<std::string> words = {"uniform",  "zipf",  "hot-expert",
                                          "hot-rank", "drift", "trace"};
  throw InvalidInput(
      fmt::format("load is '{}'; allowed: {}{}", text, kAllowed, did_you_mean(word, words)));
}

ExpertLoad sample_load(const LoadDistribution& distribution, const model::Model& model, int64_t ep,
                       uint64_t seed, int64_t index, int64_t num_samples) {
  ExpertLoad load;
  if (distribution.kind == LoadKind::kUniform) return load;
  const Drawing drawing{distribution, model, ep, seed, index};
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

double imbalance_of(const ExpertLoad& load, int64_t ep) {
  const auto ranks = static_cast<size_t>(ep);
  double sum = 0, layers = 0;
  for (const std::vector<double>& share : load.share) {
    if (share.empty()) continue;
    const size_t held = share.size() / ranks;
    double busiest = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      double rows = 0;
      for (size_t e = rank * held; e < (rank + 1) * held; ++e) rows += share[e];
      busiest = std::max(busiest, rows * static_cast<double>(ep));
    }
    sum += busiest;
    ++layers;
  }
  return layers > 0 ? std::max(1.0, sum / layers) : 1;
}

Spread spread_of(std::vector<double> values) {
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

double value(const Spread& spread, Statistic statistic) {
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
