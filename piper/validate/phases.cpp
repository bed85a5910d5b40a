#include <embedded/validation.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/suggest.h>
#include <piper/cluster/cluster.h>
#include <piper/model/import.h>
#include <piper/stack/layer_price.h>
#include <piper/validate/phases.h>

#include <algorithm>

namespace piper::validate {
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
  stack::BlockCompute attention, feed_forward;
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
  run.stack = reader.text("stack");
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
  if (name_or_path.ends_with(".json"))
    return parse_phase_run(read_json_file(name_or_path), name_or_path);
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
  const stack::Stack stack = stack::load_stack(run.stack);
  const strategy::Precision precision = precision_of(run.precision);
  const stack::Rates rates(cluster, precision);
  const stack::LayerShape shape{.tokens = static_cast<double>(run.tokens),
                                .sequence = static_cast<double>(run.sequence),
                                .tp = run.tp,
                                .ep = run.ep};
  const model::Layer& layer = model.layers[static_cast<size_t>(run.layer)];
  const stack::LayerPrice price = stack::price_layer(model, layer, shape, stack, rates, precision);
  const Seconds seconds{.attention = price.attention,
                        .feed_forward = price.feed_forward,
                        .dispatch = price.dispatch.moves.total(),
                        .combine = price.combine.moves.total()};
  std::vector<PricedPhase> priced;
  for (const Phase& phase : run.phases) priced.push_back({phase, seconds_of(seconds, phase.price)});
  return priced;
}

Json to_json(const PhaseRun& run, const std::vector<PricedPhase>& phases) {
  Json json{{"name", run.name},       {"source", run.source}, {"model", run.model},
            {"cluster", run.cluster}, {"stack", run.stack},   {"assumptions", run.assumptions},
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

}  // namespace piper::validate
