#include <embedded/validation.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/suggest.h>
#include <piper/cluster/cluster.h>
#include <piper/cost/trainer/layer_price.h>
#include <piper/model/import.h>
#include <studies/phases.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace piper::studies {
namespace {

// In the order of PhasePrice.
const std::vector<std::string> kPrices{"attention forward",
                                       "feed-forward forward",
                                       "attention backward",
                                       "feed-forward backward",
                                       "weights",
                                       "dispatch",
                                       "combine",
                                       "pair"};

Phase read_phase(const Json& json, const std::string& path, Problems* problems) {
  ObjectReader reader(json, path, problems);
  Phase phase;
  phase.name = reader.text("name");
  const std::string price = reader.choice("price", kPrices);
  const auto found = std::ranges::find(kPrices, price);
  if (found != kPrices.end()) phase.price = static_cast<PhasePrice>(found - kPrices.begin());
  phase.measured_seconds = reader.number("measured_seconds", 1e-9, 1e6);
  phase.limit = reader.number("limit", 0, 10);
  phase.source = reader.text("source");
  phase.cause = reader.text("cause", "");
  reader.refuse_unknown();
  return phase;
}

strategy::Precision precision_of(const std::string& name) {
  for (const strategy::Precision p : strategy::kPrecisions)
    if (strategy::name(p) == name) return p;
  return strategy::Precision::kBf16;
}

// The device with the multiprocessors that are left for compute; its memory is as fast as before.
cluster::Cluster with_fewer_units(cluster::Cluster cluster, double part) {
  for (auto& [precision, compute] : cluster.compute) {
    compute.peak_flops_per_second *= part;
    for (cluster::Grid* grid : {&compute.gemm, &compute.attention, &compute.attention_backward})
      for (double& rate : grid->rate) rate *= part;
  }
  return cluster;
}

struct Seconds {
  cost::BlockCompute attention, feed_forward;
  double dispatch = 0, combine = 0;
  double compute() const {
    return attention.forward + attention.backward + feed_forward.forward + feed_forward.backward;
  }
};

double seconds_of(const Seconds& s, PhasePrice price) {
  switch (price) {
    case PhasePrice::kAttentionForward:
      return s.attention.forward;
    case PhasePrice::kFeedForwardForward:
      return s.feed_forward.forward;
    case PhasePrice::kAttentionBackward:
      return s.attention.backward - s.attention.backward_weights;
    case PhasePrice::kFeedForwardBackward:
      return s.feed_forward.backward - s.feed_forward.backward_weights;
    case PhasePrice::kWeights:
      return s.attention.backward_weights + s.feed_forward.backward_weights;
    case PhasePrice::kDispatch:
      return s.dispatch;
    case PhasePrice::kCombine:
      return s.combine;
    case PhasePrice::kPair:
      return std::max(s.compute(), 2 * (s.dispatch + s.combine));
  }
  return 0;
}

constexpr const char* kSummarised = "deepseek-v3-h800";

// Where a summary of a trace says what a phase took, in microseconds: the sum of some of its
// numbers.
using JsonPath = std::vector<const char*>;
const std::map<std::string, std::vector<JsonPath>>& summary_paths() {
  static const std::map<std::string, std::vector<JsonPath>> paths{
      {"attn(F)", {{"phases", "attn(F)", "stream7", "median_us"}}},
      {"mlp(F)", {{"phases", "mlp(F)", "stream7", "median_us"}}},
      {"attn(B)", {{"phases", "attn(B)", "stream7", "median_us"}}},
      {"mlp(B)", {{"phases", "mlp(B)", "stream7", "median_us"}}},
      {"attn(W) + mlp(W)",
       {{"phases", "attn(W)", "stream7", "median_us"},
        {"phases", "mlp(W)", "stream7", "median_us"}}},
      {"dispatch(F)",
       {{"phases", "dispatch(F)", "kernel_classes_us_median", "stream27:ep_dispatch"}}},
      {"combine(B)",
       {{"phases", "combine(B)", "kernel_classes_us_median", "stream27:ep_dispatch"}}},
      {"combine(F)", {{"phases", "combine(F)", "kernel_classes_us_median", "stream27:ep_combine"}}},
      {"dispatch(B)",
       {{"phases", "dispatch(B)", "kernel_classes_us_median", "stream27:ep_combine"}}},
      {"forward + backward pair", {{"per_layer_pair_us", "mean_total_us"}}}};
  return paths;
}

// A positive number; else 1, and its path in `missing`.
double number_at(const Json& json, const JsonPath& path, std::set<std::string>& missing) {
  const Json* at = &json;
  for (const char* key : path) {
    at = at->is_object() && at->contains(key) ? &(*at)[key] : nullptr;
    if (at == nullptr) break;
  }
  if (at != nullptr && at->is_number() && at->get<double>() > 0 && at->get<double>() < 1e12)
    return at->get<double>();
  missing.insert(fmt::format("{}", fmt::join(path, ".")));
  return 1;
}

// The built-in run with what the summary of another trace measured. What is priced is not in such a
// file: it is the built-in's.
PhaseRun from_summary(const Json& json, const std::string& source) {
  PhaseRun run = load_phase_run(kSummarised);
  std::set<std::string> missing;
  constexpr double kMicro = 1e-6;
  for (Phase& phase : run.phases) {
    double microseconds = 0;
    for (const JsonPath& path : summary_paths().at(phase.name))
      microseconds += number_at(json, path, missing);
    if (phase.price == PhasePrice::kWeights) {
      // What the second compute stream adds to the time in which either works, a layer.
      const double first = number_at(json, {"trace_facts", "busy_us", "stream7"}, missing);
      const double either = number_at(json, {"trace_facts", "busy_us", "union_7_23"}, missing);
      const double span = number_at(json, {"trace_facts", "span_us"}, missing);
      const double pair = number_at(json, {"per_layer_pair_us", "mean_total_us"}, missing);
      microseconds += std::max(0.0, either - first) / std::max(1.0, std::round(span / pair));
    }
    phase.measured_seconds = kMicro * microseconds;
    phase.source = source;
    phase.cause = "not looked into";
  }
  if (!missing.empty())
    throw InvalidInput(fmt::format(
        "{}: '{}' is no positive number of microseconds{}", source, *missing.begin(),
        missing.size() > 1 ? fmt::format(", nor are {} more that a summary of a trace must state",
                                         missing.size() - 1)
                           : ""));
  run.name = source;
  run.source = source;
  run.assumptions.insert(run.assumptions.begin(),
                         fmt::format("model, machine and shape are those of {}", kSummarised));
  return run;
}

}  // namespace

PhaseRun parse_phase_run(const Json& json, const std::string& source) {
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  PhaseRun run;
  run.name = reader.text("name");
  run.description = reader.text("description", "");
  run.source = reader.text("source");
  run.model = reader.text("model");
  run.cluster = reader.text("cluster");
  run.trainer = reader.text(reader.has("stack") ? "stack" : "trainer");
  run.precision = reader.choice("precision", {"bf16", "fp8"});
  run.layer = reader.integer("layer", 0, strategy::kMaxCount);
  run.tokens = reader.integer("tokens", 1, strategy::kMaxCount);
  run.sequence = reader.integer("sequence", 1, strategy::kMaxCount);
  run.ep = reader.integer("ep", 1, strategy::kMaxDegree);
  run.tp = reader.integer("tp", 1, strategy::kMaxDegree);
  run.units = reader.integer("units", 1, strategy::kMaxCount);
  run.units_for_compute = reader.integer("units_for_compute", 1, std::max<int64_t>(run.units, 1));
  if (const Json* all = reader.array("assumptions")) {
    for (size_t i = 0; i < all->size(); ++i) {
      if ((*all)[i].is_string())
        run.assumptions.push_back((*all)[i].get<std::string>());
      else
        problems.add(fmt::format("assumptions[{}]", i), "is no text");
    }
  }
  if (const Json* phases = reader.array("phases")) {
    for (size_t i = 0; i < phases->size(); ++i)
      run.phases.push_back(read_phase((*phases)[i], fmt::format("phases[{}]", i), &problems));
  }
  reader.refuse_unknown();
  problems.finish();
  return run;
}

std::vector<std::string> builtin_phase_runs() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded::validation()) names.emplace_back(file.name);
  return names;
}

PhaseRun load_phase_run(const std::string& name_or_path) {
  for (const EmbeddedFile& file : embedded::validation())
    if (file.name == name_or_path) {
      const std::string source = fmt::format("built-in run {}", file.name);
      return parse_phase_run(parse_json(file.text, source), source);
    }
  if (name_or_path.ends_with(".json")) {
    const Json json = read_json_file(name_or_path);
    if (!json.is_object() || !json.contains("phases"))
      throw InvalidInput(name_or_path +
                         ": 'phases' is missing; allowed: a run as in configs/validation, or a "
                         "summary of a trace with phases by name");
    return json["phases"].is_object() ? from_summary(json, name_or_path)
                                      : parse_phase_run(json, name_or_path);
  }
  throw InvalidInput(fmt::format("run '{}' is not known; allowed: a file or one of {}{}",
                                 name_or_path, fmt::join(builtin_phase_runs(), ", "),
                                 did_you_mean(name_or_path, builtin_phase_runs())));
}

std::vector<PricedPhase> price_phases(const PhaseRun& run) {
  const model::Model model = model::load_model(run.model);
  if (run.layer >= model.num_layers() ||
      !model.layers[static_cast<size_t>(run.layer)].feed_forward.is_moe())
    throw InvalidInput(fmt::format("{}: 'layer' is {}; allowed: a layer of {} with experts",
                                   run.name, run.layer, run.model));
  const double part = static_cast<double>(run.units_for_compute) / static_cast<double>(run.units);
  const cluster::Cluster cluster = with_fewer_units(cluster::load_cluster(run.cluster), part);
  const cost::TrainerProfile trainer = cost::load_trainer(run.trainer);
  const strategy::Precision precision = precision_of(run.precision);
  const cost::Rates rates(cluster, precision);
  const cost::LayerShape shape{.tokens = static_cast<double>(run.tokens),
                               .sequence = static_cast<double>(run.sequence),
                               .tp = run.tp,
                               .ep = run.ep};
  const model::Layer& layer = model.layers[static_cast<size_t>(run.layer)];
  const cost::LayerPrice price = cost::price_layer(model, layer, shape, trainer, rates, precision);
  const Seconds seconds{.attention = price.attention,
                        .feed_forward = price.feed_forward,
                        .dispatch = price.mixture_forward.dispatch.moves.total(),
                        .combine = price.mixture_forward.combine.moves.total()};
  std::vector<PricedPhase> priced;
  for (const Phase& phase : run.phases) priced.push_back({phase, seconds_of(seconds, phase.price)});
  return priced;
}

Json to_json(const PhaseRun& run, const std::vector<PricedPhase>& phases) {
  Json json{{"name", run.name},       {"source", run.source},   {"model", run.model},
            {"cluster", run.cluster}, {"trainer", run.trainer}, {"assumptions", run.assumptions},
            {"phases", Json::array()}};
  for (const PricedPhase& p : phases)
    json["phases"].push_back({{"name", p.phase.name},
                              {"price", kPrices[static_cast<size_t>(p.phase.price)]},
                              {"measured_seconds", p.phase.measured_seconds},
                              {"predicted_seconds", p.predicted_seconds},
                              {"relative_error", p.error()},
                              {"limit", p.phase.limit},
                              {"holds", p.holds()},
                              {"source", p.phase.source},
                              {"cause", p.holds() ? "" : p.phase.cause}});
  return json;
}

}  // namespace piper::studies
