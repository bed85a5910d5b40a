#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/plan_insight.h>
#include <piper/cli/runnable_plan.h>
#include <piper/cli/strategy_flags.h>
#include <piper/cost/outside.h>
#include <piper/model/count.h>
#include <piper/plan/reduction_axis.h>
#include <piper/report/table.h>
#include <piper/stack/stack.h>

#include <limits>

namespace piper::cli {
namespace {

using report::Align;

constexpr size_t kMostMemoryRows = 6;

std::string bytes(int64_t count) { return format_bytes(static_cast<double>(count)); }

std::string mesh_text(const strategy::Mesh& mesh) {
  return fmt::format("pp {} x ep {} x dp {}", mesh.pp, mesh.ep, mesh.dp);
}

bool is_even(const strategy::Strategy& s, int64_t layers) {
  return s.layers_per_stage == strategy::even_split(layers, s.mesh.pp);
}

// One sentence: against the best of another mesh.
std::string why_best(const plan::Plan& plan) {
  const plan::Planned& best = plan.strategies.front();
  for (const plan::Planned& other : plan.strategies)
    if (!(other.strategy.mesh == best.strategy.mesh))
      return fmt::format("{} beats {}: {} against {} ({} there: {})", mesh_text(best.strategy.mesh),
                         mesh_text(other.strategy.mesh),
                         format_seconds(best.prediction.step_seconds),
                         format_seconds(other.prediction.step_seconds),
                         format_percent(other.prediction.mfu), plan::limits(other.prediction));
  return fmt::format("{} is the only mesh that fits", mesh_text(best.strategy.mesh));
}

std::string mfu_note(const plan::Prediction& p) {
  return fmt::format(
      "MFU = {}; peak {}. Against the peak that GEMMs reach ({}, eq. 12) the best has {}",
      cost::kMfuFormula, format_flops_per_second(p.peak_flops_per_second),
      format_flops_per_second(p.effective.effective_peak_flops_per_second),
      format_percent(p.effective.mfu()));
}

std::vector<std::string> notes_of(const plan::Plan& plan) {
  std::vector<std::string> notes;
  if (plan.strategies.empty()) return notes;
  const plan::Prediction& best = plan.strategies.front().prediction;
  notes.push_back("why: " + why_best(plan));
  notes.push_back("what limits it: " + plan::limits(best));
  notes.push_back(mfu_note(best));
  return notes;
}

// Of the strategies that are shown, all together.
std::vector<cluster::Outside> outside_of(const plan::Request& request, const plan::Plan& plan,
                                         int64_t top) {
  std::vector<strategy::Strategy> shown;
  for (const plan::Planned& planned : plan.strategies)
    if (std::ssize(shown) < top) shown.push_back(planned.strategy);
  if (shown.empty() && plan.nearest) shown.push_back(plan.nearest->strategy);
  return cost::outside_measured(request.model, request.cluster, shown);
}

std::string reduction_of(const plan::Request& request, const plan::Plan& plan) {
  return plan::explain_reduction(request.model, request.cluster, plan.strategies.front().strategy);
}

plan::ExchangeVerdict exchange_of(const plan::Request& request, const plan::Plan& plan) {
  return plan::explain_exchange(request.model, request.cluster, plan.strategies.front().strategy);
}

Json planned_json(const plan::Planned& planned) { return strategy::to_json(planned.strategy); }

std::string load_note(const plan::Request& request) {
  return request.load ? cost::stretch_of(*request.load, request.model) : "";
}

void print_header(const plan::Request& request, const plan::Plan& plan, double seconds) {
  fmt::print("{} ({} parameters) on {} devices of {} ({})\n", request.model.name,
             format_count(static_cast<double>(model::count_parameters(request.model).total())),
             plan.num_devices, request.cluster.name, request.cluster.device);
  fmt::print(
      "{} sequences of {} tokens a step, {}; {} of {} usable a device; {} strategies priced in "
      "{}{}\n",
      plan.global_batch_sequences, plan.sequence, strategy::name(plan.precision),
      bytes(plan.memory_limit_bytes), bytes(request.cluster.memory_bytes), plan.num_considered,
      format_seconds(seconds),
      plan.num_simulated > 0 ? fmt::format(", the best {} simulated", plan.num_simulated) : "");
  if (request.load)
    fmt::print(
        "ranked by the {} of {} samples of load {}: the best {} by a balanced load priced again\n",
        cost::name(request.load_statistic), request.num_load_samples, request.load->text,
        plan.num_repriced);
  if (const std::string note = load_note(request); !note.empty()) fmt::print("note: {}\n", note);
  for (const plan::Default& d : plan.defaults)
    fmt::print("default: {} {} ({})\n", d.name, d.value, d.why);
}

void print_strategies(const std::vector<plan::Planned>& strategies, int64_t layers, int64_t top) {
  report::Table table;
  table.columns = {{"", Align::kRight},
                   {"pp", Align::kRight},
                   {"ep", Align::kRight},
                   {"dp", Align::kRight},
                   {"micro-batch", Align::kRight},
                   {"count", Align::kRight},
                   {"schedule"},
                   {"recompute"},
                   {"layers"},
                   {"exchange"},
                   {"MFU", Align::kRight},
                   {"step", Align::kRight},
                   {"tokens/s", Align::kRight},
                   {"memory", Align::kRight},
                   {"idle", Align::kRight}};
  const bool loaded = !strategies.empty() && strategies.front().under_load.has_value();
  if (loaded)
    for (const char* what : {"mean", "p95", "worst", "memory p95"})
      table.columns.push_back({what, Align::kRight});
  for (size_t i = 0; i < strategies.size() && static_cast<int64_t>(i) < top; ++i) {
    const strategy::Strategy& s = strategies[i].strategy;
    const plan::Prediction& p = strategies[i].prediction;
    table.rows.push_back(
        {std::to_string(i + 1), std::to_string(s.mesh.pp), std::to_string(s.mesh.ep),
         std::to_string(s.mesh.dp), std::to_string(s.micro_batch_sequences),
         std::to_string(s.num_micro_batches), strategy::name(s.schedule),
         strategy::name(s.recompute), is_even(s, layers) ? "even" : "balanced",
         to_text(cost::form_of(s)), format_percent(p.mfu), format_seconds(p.step_seconds),
         format_count(p.tokens_per_second), bytes(p.peak_bytes),
         format_percent(p.estimate.time.idle / p.step_seconds)});
    if (!loaded) continue;
    const cost::UnderLoad& load = *strategies[i].under_load;
    for (const double seconds : {load.seconds.mean, load.seconds.p95, load.seconds.worst})
      table.rows.back().push_back(format_seconds(seconds));
    table.rows.back().push_back(format_bytes(load.peak_bytes.p95));
  }
  table.max_width = report::console_width();
  fmt::print("\n{}", report::to_text(table));
}

// Named groups in full; of the families that memory kills those that lack least, which come first.
void print_rejected(const std::vector<plan::Rejected>& rejected) {
  if (rejected.empty()) return;
  report::Table table;
  table.columns = {
      {"not there"}, {"because"}, {"constraint"}, {"smallest change that would admit it"}};
  size_t num_left_out = 0, num_memory = 0;
  for (const plan::Rejected& r : rejected) {
    if (r.num_strategies > 0 && ++num_memory > kMostMemoryRows) {
      ++num_left_out;
      continue;
    }
    table.rows.push_back({r.family, r.constraint, r.equation, r.smallest_change});
  }
  fmt::print("\n{}", report::to_text(table));
  if (num_left_out > 0)
    fmt::print("and {} more that lack more memory (all of them: --json)\n", num_left_out);
}

// What no other strategy is both faster and smaller than, fastest first.
Json front_json(const plan::Request& request, const plan::Plan& plan) {
  Json front = Json::array();
  double least = std::numeric_limits<double>::infinity();
  for (const plan::Planned& planned : plan.strategies) {
    const plan::Prediction& p = planned.prediction;
    const auto peak = static_cast<double>(p.peak_bytes);
    if (request.load || peak >= least) continue;  // a load ranks by other figures than these
    least = peak;
    front.push_back({{"mfu", p.mfu},
                     {"step_seconds", p.step_seconds},
                     {"peak_bytes", peak},
                     {"global_batch_sequences", plan.global_batch_sequences},
                     {"strategy", describe(planned.strategy)}});
  }
  return front;
}

// How far each figure of the machine moves the best, and its layers against the roofs: by the
// prices of the stack "piper", relative to each other.
void add_insight(Json& json, const plan::Request& request, const plan::Plan& plan) {
  const stack::Stack stack = stack::load_stack("piper");
  const plan::WholeRequest whole{
      .model = &request.model,
      .cluster = &request.cluster,
      .stack = &stack,
      .num_devices = plan.num_devices,
      .sequence = plan.sequence,
      .global_batch_sequences = plan.global_batch_sequences,
      .precision = plan.precision,
      .memory_limit_bytes = static_cast<double>(plan.memory_limit_bytes)};
  const Json insight = insight_json(whole, plan.strategies.front().strategy);
  for (const char* part : {"sensitivity", "roofline"}) json[part] = insight.at(part);
}

}  // namespace

Json to_json(const plan::Request& request, const plan::Plan& plan, int64_t top, double seconds) {
  Json json{{"model", request.model.name},
            {"cluster", request.cluster.name},
            {"num_devices", plan.num_devices},
            {"sequence", plan.sequence},
            {"global_batch_sequences", plan.global_batch_sequences},
            {"precision", strategy::name(plan.precision)},
            {"memory_limit_bytes", plan.memory_limit_bytes},
            {"num_considered", plan.num_considered},
            {"num_simulated", plan.num_simulated},
            {"num_repriced", plan.num_repriced},
            {"plan_seconds", seconds}};
  json["defaults"] = Json::object();
  for (const plan::Default& d : plan.defaults)
    json["defaults"][d.name] = {{"value", d.value}, {"why", d.why}};
  if (const std::string note = load_note(request); !note.empty()) json["load_note"] = note;
  json["notes"] = notes_of(plan);
  if (!plan.strategies.empty()) {
    json["exchange"] = to_json(exchange_of(request, plan));
    json["reduction"] = reduction_of(request, plan);
    json["pareto"] = front_json(request, plan);
    add_insight(json, request, plan);
  }
  json["outside_measured"] = cluster::to_json(outside_of(request, plan, top));
  json["strategies"] = Json::array();
  for (const plan::Planned& planned : plan.strategies)
    if (std::ssize(json["strategies"]) < top) json["strategies"].push_back(planned_json(planned));
  if (plan.nearest) json["nearest"] = planned_json(*plan.nearest);
  json["rejected"] = Json::array();
  for (const plan::Rejected& r : plan.rejected)
    json["rejected"].push_back({{"family", r.family},
                                {"constraint", r.constraint},
                                {"equation", r.equation},
                                {"smallest_change", r.smallest_change},
                                {"num_strategies", r.num_strategies}});
  return json;
}

void print_plan(const plan::Request& request, const plan::Plan& plan, int64_t top, bool explain,
                double seconds) {
  print_header(request, plan, seconds);
  if (plan.strategies.empty()) {
    fmt::print("\nnothing fits{}\n",
               plan.nearest ? fmt::format("; the nearest (--global-batch {}):",
                                          plan.nearest->strategy.global_batch_sequences)
                            : "");
    if (plan.nearest) print_strategies({*plan.nearest}, request.model.num_layers(), 1);
  } else {
    print_strategies(plan.strategies, request.model.num_layers(), top);
    fmt::print("\n");
    for (const std::string& note : notes_of(plan)) fmt::print("{}\n", note);
    if (explain) {
      print_exchange(exchange_of(request, plan));
      if (const std::string reduction = reduction_of(request, plan); !reduction.empty())
        fmt::print("{}\n", reduction);
    }
  }
  const std::vector<cluster::Outside> outside = outside_of(request, plan, top);
  if (!outside.empty())
    fmt::print("outside of what was measured (the nearest edge holds): {}\n",
               cluster::to_text(outside));
  print_rejected(plan.rejected);
}

}  // namespace piper::cli
