#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/fits.h>
#include <piper/cli/whole_estimate.h>
#include <piper/cli/whole_plan.h>
#include <piper/plan/under_load.h>
#include <piper/report/table.h>
#include <piper/stack/outside.h>
#include <piper/strategy/runnable.h>

#include <cmath>
#include <iostream>
#include <optional>
#include <vector>

namespace piper::cli {
namespace {

using report::Align;

struct Side {
  plan::WholeRequest request;
  plan::WholeCandidate candidate;
};

Side side_of(const Priced& p, const stack::Stack& stack) {
  stack::Estimator estimator(p.model, p.cluster, stack, p.strategy.precision, p.strategy.sequence);
  return {{.model = &p.model, .cluster = &p.cluster, .stack = &stack},
          {p.strategy, estimator.estimate(p.strategy)}};
}

struct Row {
  const char* name;
  double seconds;
};
std::vector<Row> times(const stack::Estimate& e) {
  const stack::StepSeconds& t = e.time;
  return {{"step", e.seconds},
          {"  compute", t.compute},
          {"  recomputation", t.recompute},
          {"  tensor collectives", t.tensor},
          {"  exchange of tokens", t.exchange},
          {"  context collectives", t.context},
          {"  messages between stages", t.messages},
          {"  pipeline bubble", t.bubble},
          {"  gradient reductions", t.reductions},
          {"  update", t.update},
          {"  copies to the host", t.offload}};
}
constexpr const char* kScratch = "  scratch of exchanges";  // of those that are not flat
std::vector<Row> memory(const stack::Estimate& e) {
  return {{"memory of the fullest stage", e.peak_bytes},
          {"  weights and gradients", e.fullest.weights_and_gradients},
          {"  optimizer", e.fullest.optimizer},
          {"  activations", e.fullest.activations},
          {"  working", e.fullest.working},
          {kScratch, e.fullest.exchange},
          {"  fixed", e.fullest.fixed}};
}

double mfu_of(const Side& s) {
  return stack::mfu(*s.request.model, s.candidate.strategy, *s.request.cluster,
                    s.candidate.estimate.seconds);
}

Fit fit_of(const Side& s) {
  const stack::Estimate& e = s.candidate.estimate;
  return memory_fit(*s.request.cluster, e.peak_bytes, e.fullest_stage);
}

std::optional<SampledSteps> under_load(const Priced& p, const stack::Stack& stack,
                                       const LoadFlags& flags) {
  const std::optional<cost::LoadDistribution> load = load_of(flags);
  if (!load) return std::nullopt;
  const int64_t ep = p.strategy.mesh.ep;
  std::vector<double> imbalances;
  for (int64_t i = 0; i < flags.num_samples; ++i)
    imbalances.push_back(cost::imbalance_of(
        cost::sample_load(*load, p.model, ep, flags.seed, i, flags.num_samples), ep));
  const plan::SampledEstimate sampled =
      plan::sampled_estimate(p.model, p.cluster, stack, p.strategy, imbalances);
  return SampledSteps{sampled.seconds, sampled.peak_bytes, cost::stretch_of(*load, p.model)};
}

}  // namespace

int estimate_whole(const Priced& priced, const std::string& stack_name, const LoadFlags& load,
                   bool json) {
  const stack::Stack stack = stack::load_stack(stack_name);
  const Side side = side_of(priced, stack);
  const stack::Estimate& e = side.candidate.estimate;
  const std::vector<cluster::Outside> outside =
      stack::outside_measured(priced.model, priced.cluster, stack, priced.strategy);
  const std::optional<SampledSteps> sampled = under_load(priced, stack, load);
  if (json) {
    strategy::Strategy plain = priced.strategy;
    plain.predicted = nullptr;
    Json answer{{"model", priced.model.name},
                {"cluster", priced.cluster.name},
                {"strategy", strategy::to_json(plain)},
                {"predicted", whole_json(side.request, side.candidate)["predicted"]},
                {"outside_measured", cluster::to_json(outside)}};
    if (sampled) answer["under_load"] = to_json(load, *sampled);
    add_to(answer, fit_of(side));
    std::cout << answer.dump(2) << "\n";
    return 0;
  }
  fmt::print("{} on {}: {}\npriced as the stack '{}' would run it\n", priced.model.name,
             priced.cluster.name, plan::describe_whole(priced.strategy), stack.name);
  for (const std::string& line : strategy::not_runnable(priced.strategy))
    fmt::print("not for this Piper's runtime: {}\n", line);
  report::Table table;
  table.columns = {{"time"}, {"", Align::kRight}, {"of the step", Align::kRight}};
  for (const Row& r : times(e))
    if (r.seconds > 0)
      table.rows.push_back(
          {r.name, format_seconds(r.seconds), format_percent(r.seconds / e.seconds)});
  fmt::print("\n{}", report::to_text(table));
  report::Table bytes;
  bytes.columns = {{"memory"}, {"", Align::kRight}};
  for (const Row& r : memory(e))
    if (r.name != kScratch || r.seconds > 0)
      bytes.rows.push_back({r.name, format_bytes(r.seconds)});
  fmt::print("\n{}\nMFU {}; stage {} is the fullest, stage {} the busiest\n",
             report::to_text(bytes), format_percent(mfu_of(side)), e.fullest_stage,
             e.busiest_stage);
  fmt::print("{}", to_text(fit_of(side)));
  if (!outside.empty())
    fmt::print("outside of what was measured (the nearest edge holds): {}\n",
               cluster::to_text(outside));
  if (sampled)
    fmt::print("\n{}", to_text(fmt::format("load {}, {} samples (closed form; above: balanced)",
                                           load.load, load.num_samples),
                               *sampled));
  return 0;
}

int compare_whole(const Priced& a, const Priced& b, const std::string& stack_name, bool json) {
  const stack::Stack stack = stack::load_stack(stack_name);
  const Side left = side_of(a, stack), right = side_of(b, stack);
  const auto per_token = [](const Side& s) {
    return s.candidate.estimate.seconds /
           static_cast<double>(s.candidate.strategy.sequence *
                               s.candidate.strategy.global_batch_sequences);
  };
  const double speedup = per_token(left) / per_token(right);
  if (json) {
    std::cout << Json{{"stack", stack.name},
                      {"a", whole_json(left.request, left.candidate)},
                      {"b", whole_json(right.request, right.candidate)},
                      {"speedup", speedup}}
                     .dump(2)
              << "\n";
    return 0;
  }
  fmt::print("a  {}\nb  {}\nboth as the stack '{}' would run them\n",
             plan::describe_whole(a.strategy), plan::describe_whole(b.strategy), stack.name);
  report::Table table;
  table.columns = {{""}, {"a", Align::kRight}, {"b", Align::kRight}, {"b - a", Align::kRight}};
  const auto add = [&](const std::vector<Row>& x, const std::vector<Row>& y, auto format) {
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i].seconds == 0 && y[i].seconds == 0) continue;
      const double more = y[i].seconds - x[i].seconds;
      table.rows.push_back({x[i].name, format(x[i].seconds), format(y[i].seconds),
                            (more < 0 ? "-" : "+") + format(std::abs(more))});
    }
  };
  add(times(left.candidate.estimate), times(right.candidate.estimate), format_seconds);
  add(memory(left.candidate.estimate), memory(right.candidate.estimate),
      [](double bytes) { return format_bytes(bytes); });
  table.rows.push_back({"MFU", format_percent(mfu_of(left)), format_percent(mfu_of(right)), ""});
  fmt::print("\n{}b is {:.2f} times as fast a token as a\n", report::to_text(table), speedup);
  for (const auto& [which, name] : {std::pair{&left, "a"}, {&right, "b"}})
    if (const Fit fit = fit_of(*which); !fit.fits()) fmt::print("{} {}", name, to_text(fit));
  return 0;
}

}  // namespace piper::cli
