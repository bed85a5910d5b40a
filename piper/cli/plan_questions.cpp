#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/console.h>
#include <piper/cli/plan_questions.h>
#include <piper/cli/prediction_table.h>
#include <piper/model/count.h>
#include <piper/plan/device_walk.h>
#include <piper/plan/fewest_devices.h>
#include <piper/plan/what_if.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>

#include <algorithm>
#include <chrono>
#include <optional>

namespace piper::cli {
namespace {

using plan::Candidate;
using report::Align;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The best plan of each machine, first that of the machine as it is.
struct WhatIfRow {
  std::string change;  // empty: as it is
  bool fits = false;
  double step_seconds = 0, mfu = 0;
  double peak_bytes = 0;  // where nothing fits: of what needs least; 0: there is nothing
  std::string strategy, limits;
};

void print_what_if_table(const std::vector<WhatIfRow>& rows) {
  report::Table table;
  table.columns = {{"what if"},
                   {"step", Align::kRight},
                   {"speed-up", Align::kRight},
                   {"MFU", Align::kRight},
                   {"memory", Align::kRight},
                   {"best strategy"},
                   {"what limits it"}};
  const WhatIfRow& base = rows.front();
  for (const WhatIfRow& row : rows) {
    const std::string name = row.change.empty() ? "as it is" : row.change;
    const std::string memory = row.peak_bytes > 0 ? format_bytes(row.peak_bytes) : "–";
    if (!row.fits) {
      table.rows.push_back({name, "–", "–", "–", memory, "nothing fits", ""});
      continue;
    }
    table.rows.push_back(
        {name, format_seconds(row.step_seconds),
         base.fits ? fmt::format("{:.2f} x", base.step_seconds / row.step_seconds) : "–",
         format_percent(row.mfu), memory, row.strategy, row.limits});
  }
  table.max_width = report::console_width();
  say("{}", Lines{report::to_text(table)});
}

// Memory against the limit, ten characters for the limit; what lies beyond it is drawn otherwise.
std::string memory_bar(double peak, double limit) {
  constexpr double kLimit = 10, kMost = 20;
  const double length = kLimit * peak / limit;
  std::string text;
  for (double at = 0.5; at < std::min(length, kMost); ++at) text += at < kLimit ? "#" : "!";
  return length > kMost ? text + "..." : text;
}

std::string fewest_sentence(std::optional<int64_t> fewest, int64_t num_not_looked_at,
                            int64_t own_devices) {
  if (!fewest)
    return "no number of devices looked at is enough; a longer pipeline than the model's layers or "
           "more experts a rank do not exist: a device with more memory (--what-if memory=x2)\n";
  return fmt::format(
      "{}: {} devices{}\n",
      num_not_looked_at > 0
          ? fmt::format("the fewest of those looked at ({} between were not)", num_not_looked_at)
          : "the fewest",
      *fewest,
      *fewest > own_devices ? fmt::format(" (the cluster as described has {})", own_devices) : "");
}

// The pointers of a request point into its question.
struct Machine {
  std::string change;  // empty: as it is
  PlanQuestion question;
  PlanAnswer answer = {};
  const Candidate* best() const {
    return answer.plan.ranked.empty() ? nullptr : &answer.plan.ranked.front();
  }
};

Json what_if_json(const std::vector<Machine>& machines) {
  const Candidate* base = machines.front().best();
  Json json = Json::array();
  for (const Machine& m : machines) {
    Json entry{{"change", m.change}, {"memory_limit_bytes", m.answer.request.memory_limit_bytes}};
    if (m.best() != nullptr) entry["best"] = priced_json(m.answer.request, *m.best());
    if (m.best() != nullptr && base != nullptr)
      entry["speedup"] = base->step_seconds() / m.best()->step_seconds();
    json.push_back(entry);
  }
  return json;
}

WhatIfRow row_of(const Machine& m) {
  WhatIfRow row{.change = m.change};
  if (const Candidate* best = m.best()) {
    row.fits = true;
    row.step_seconds = best->step_seconds();
    row.mfu = plan::prediction_of(m.answer.request, *best).mfu;
    row.peak_bytes = best->estimate.peak_bytes;
    row.strategy = plan::describe(best->strategy);
    row.limits = plan::limits(best->time());
  } else if (const Candidate* nearest = nearest_of(m.answer.plan)) {
    row.peak_bytes = nearest->estimate.peak_bytes;
  }
  return row;
}

void print_what_if(const std::vector<Machine>& machines) {
  const plan::Request& here = machines.front().answer.request;
  say("{} on {} devices of {}, {}; {} sequences of {} tokens a step, {}\n\n", here.model->name,
      here.num_devices, here.cluster->name, run_by(*here.trainer, here.has_exact_costs()),
      here.global_batch_sequences, here.sequence, strategy::name(here.precision));
  std::vector<WhatIfRow> rows;
  for (const Machine& m : machines) rows.push_back(row_of(m));
  print_what_if_table(rows);
}

// A cluster with more units of its outermost level than there are, and what the counts on it asked.
struct FewestAnswer {
  plan::FewestDevices found;
  std::vector<plan::Default> defaults;
  std::optional<cost::LoadSamples> load;
  double memory_limit_bytes = 0;
  int64_t own_devices = 0;
  bool beyond_cluster() const {
    return !found.counts.empty() && found.counts.back().num_devices > own_devices;
  }
};

Json min_devices_json(const plan::Request& r, const FewestAnswer& a) {
  Json json{{"model", r.model->name},
            {"cluster", r.cluster->name},
            {"trainer", r.trainer->name},
            {"memory_limit_bytes", a.memory_limit_bytes},
            {"beyond_cluster", a.beyond_cluster()}};
  json["min_devices"] = a.found.num_devices ? Json(*a.found.num_devices) : Json();
  json["num_not_looked_at"] = a.found.num_not_looked_at;
  json["counts"] = Json::array();
  for (const plan::DeviceCount& count : a.found.counts) {
    Json one{{"num_devices", count.num_devices},
             {"fits", count.best.has_value()},
             {"smallest", priced_json(r, count.smallest)},
             {"smallest_peak_bytes", count.smallest.estimate.peak_bytes}};
    if (count.best) {
      one["best"] = priced_json(r, *count.best);
      one["mfu"] = plan::prediction_of(r, *count.best).mfu;
    }
    json["counts"].push_back(std::move(one));
  }
  return json;
}

void print_min_devices(const plan::Request& r, const FewestAnswer& a) {
  say("{} on {} ({}), {}; {} usable a device\n", r.model->name, r.cluster->name, r.cluster->device,
      run_by(*r.trainer, r.has_exact_costs()), format_bytes(a.memory_limit_bytes));
  for (const plan::Default& d : a.defaults)
    if (d.name == "sequence" || d.name == "precision")
      say("default: {} {} ({})\n", d.name, d.value, d.why);
  report::Table table;
  table.columns = {{"devices", Align::kRight},  {"least memory", Align::kRight},
                   {"of what is usable"},       {"with"},
                   {"best MFU", Align::kRight}, {"with"}};
  for (const plan::DeviceCount& count : a.found.counts)
    table.rows.push_back(
        {std::to_string(count.num_devices), format_bytes(count.smallest.estimate.peak_bytes),
         memory_bar(count.smallest.estimate.peak_bytes, a.memory_limit_bytes),
         plan::describe(count.smallest.strategy),
         count.best ? format_percent(plan::prediction_of(r, *count.best).mfu) : "–",
         count.best ? plan::describe(count.best->strategy) : "nothing fits"});
  table.max_width = report::console_width();
  say("\n{}\n", Lines{report::to_text(table)});
  say("{}", Lines{fewest_sentence(a.found.num_devices, a.found.num_not_looked_at, a.own_devices)});
  for (const plan::DeviceCount& count : a.found.counts)
    if (count.num_devices == a.found.num_devices)
      say("the best there: {}\nwhat limits it: {}\n", plan::describe(count.best->strategy),
          plan::limits(count.best->time()));
}

}  // namespace

int answer_what_if(const PlanQuestion& question) {
  // All changes are checked before the first is planned for.
  std::vector<Machine> machines = {{.change = "", .question = question}};
  for (const std::string& change : question.what_if) {
    machines.push_back({.change = change, .question = question});
    machines.back().question.asked.cluster = plan::changed(question.asked.cluster, change);
  }
  std::optional<report::Progress> bar;  // not before a refusal
  const auto start = Clock::now();
  double seconds_here = 0;
  for (size_t i = 0; i < machines.size(); ++i) {
    Machine& m = machines[i];
    if (i > 0) {
      const plan::Request& here = machines.front().answer.request;
      plan::Question& asked = m.question.asked;
      asked.num_devices = here.num_devices;
      asked.sequence = here.sequence;
      asked.global_batch_sequences = here.global_batch_sequences;
      asked.precision = here.precision;
    }
    m.answer = plan_answer(m.question, [&](int64_t done, int64_t total) {
      if (!bar) bar.emplace(report::ProgressOptions{.label = "plan", .total = 100, .unit = "%"});
      bar->set((100 * static_cast<int64_t>(i) + 100 * done / total) / std::ssize(machines),
               m.change);
    });
    if (i == 0) seconds_here = seconds_since(start);
  }
  if (bar) bar->finish();
  const Machine& here = machines.front();
  if (question.json) {
    Json json = question.explain ? to_json(here.question, here.answer, seconds_here) : Json{};
    json["what_if"] = what_if_json(machines);
    say_json(json);
  } else {
    if (question.explain) {
      print_plan_answer(here.question, here.answer, seconds_here);
      say("\n");
    }
    print_what_if(machines);
  }
  return std::ranges::any_of(machines, [](const Machine& m) { return m.best() != nullptr; }) ? 0
                                                                                             : 1;
}

int answer_min_devices(const PlanQuestion& question) {
  const cost::TrainerProfile& trainer = question.trainer;
  FewestAnswer answer{.own_devices = question.asked.cluster.num_devices()};
  PlanQuestion asked = question;
  asked.asked.cluster = plan::extended(question.asked.cluster);
  std::optional<report::Progress> bar;  // not before a refusal
  int64_t looked_at = 0;
  const auto request_of = [&](int64_t num_devices) {
    asked.asked.num_devices = num_devices;
    plan::Request request = plan::resolve_defaults(asked.asked, trainer, answer.defaults);
    answer.memory_limit_bytes = request.memory_limit_bytes;
    answer.load = request.load;
    return request;
  };
  const auto progress = [&](int64_t num_devices) {
    if (!bar) bar.emplace(report::ProgressOptions{.label = "plan", .total = 0, .unit = "counts"});
    bar->set(++looked_at, fmt::format("{} devices", num_devices));
  };
  answer.found = plan::fewest_devices(asked.asked.cluster, request_of, progress);
  if (bar) bar->finish();
  const plan::Request request{.model = &question.asked.model,
                              .cluster = &asked.asked.cluster,
                              .trainer = &trainer,
                              .memory_limit_bytes = answer.memory_limit_bytes,
                              .load = answer.load};
  if (question.json)
    say_json(min_devices_json(request, answer));
  else
    print_min_devices(request, answer);
  return answer.found.num_devices ? 0 : 1;
}

}  // namespace piper::cli
