#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/plan_questions.h>
#include <piper/cli/whole_questions.h>
#include <piper/model/count.h>
#include <piper/plan/device_walk.h>
#include <piper/plan/fewest_whole.h>
#include <piper/plan/what_if.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>

namespace piper::cli {
namespace {

using plan::WholeCandidate;
using report::Align;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The pointers of a request point into its question.
struct Machine {
  std::string change;  // empty: as it is
  WholeQuestion question;
  WholeAnswer answer = {};
  const WholeCandidate* best() const {
    return answer.plan.ranked.empty() ? nullptr : &answer.plan.ranked.front();
  }
  // Of what does not fit.
  const WholeCandidate* nearest() const {
    const WholeCandidate* least = nullptr;
    for (const plan::FamilyBest& family : answer.plan.families)
      if (family.smallest &&
          (least == nullptr || family.smallest->estimate.peak_bytes < least->estimate.peak_bytes))
        least = &*family.smallest;
    return least;
  }
};

Json what_if_json(const std::vector<Machine>& machines) {
  const WholeCandidate* base = machines.front().best();
  Json json = Json::array();
  for (const Machine& m : machines) {
    Json entry{{"change", m.change}, {"memory_limit_bytes", m.answer.request.memory_limit_bytes}};
    if (m.best() != nullptr) entry["best"] = whole_json(m.answer.request, *m.best());
    if (m.best() != nullptr && base != nullptr)
      entry["speedup"] = base->step_seconds() / m.best()->step_seconds();
    json.push_back(entry);
  }
  return json;
}

WhatIfRow row_of(const Machine& m) {
  WhatIfRow row{.change = m.change};
  if (const WholeCandidate* best = m.best()) {
    row.fits = true;
    row.step_seconds = best->step_seconds();
    row.mfu = whole_mfu(m.answer.request, *best);
    row.peak_bytes = best->estimate.peak_bytes;
    row.strategy = plan::describe_whole(best->strategy);
    row.limits = plan::limits(best->estimate);
  } else if (m.nearest() != nullptr) {
    row.peak_bytes = m.nearest()->estimate.peak_bytes;
  }
  return row;
}

void print_what_if(const std::vector<Machine>& machines) {
  const plan::WholeRequest& here = machines.front().answer.request;
  fmt::print(
      "{} on {} devices of {}, as the stack '{}' would run it; {} sequences of {} tokens a "
      "step, {}\n\n",
      here.model->name, here.num_devices, here.cluster->name, here.stack->name,
      here.global_batch_sequences, here.sequence, strategy::name(here.precision));
  std::vector<WhatIfRow> rows;
  for (const Machine& m : machines) rows.push_back(row_of(m));
  print_what_if_table(rows);
}

// A cluster with more units of its outermost level than there are, and what the counts on it asked.
struct FewestAnswer {
  plan::FewestWhole found;
  std::vector<plan::Default> defaults;
  double memory_limit_bytes = 0;
  int64_t own_devices = 0;
  bool beyond_cluster() const {
    return !found.counts.empty() && found.counts.back().num_devices > own_devices;
  }
};

Json min_devices_json(const plan::WholeRequest& r, const FewestAnswer& a) {
  Json json{{"model", r.model->name},
            {"cluster", r.cluster->name},
            {"stack", r.stack->name},
            {"memory_limit_bytes", a.memory_limit_bytes},
            {"beyond_cluster", a.beyond_cluster()}};
  json["min_devices"] = a.found.num_devices ? Json(*a.found.num_devices) : Json();
  json["num_not_looked_at"] = a.found.num_not_looked_at;
  json["counts"] = Json::array();
  for (const plan::WholeCount& count : a.found.counts) {
    Json one{{"num_devices", count.num_devices},
             {"fits", count.best.has_value()},
             {"smallest", whole_json(r, count.smallest)},
             {"smallest_peak_bytes", count.smallest.estimate.peak_bytes}};
    if (count.best) {
      one["best"] = whole_json(r, *count.best);
      one["mfu"] = whole_mfu(r, *count.best);
    }
    json["counts"].push_back(std::move(one));
  }
  return json;
}

void print_min_devices(const plan::WholeRequest& r, const FewestAnswer& a) {
  fmt::print("{} on {} ({}), as the stack '{}' would run it; {} usable a device\n", r.model->name,
             r.cluster->name, r.cluster->device, r.stack->name, format_bytes(a.memory_limit_bytes));
  for (const plan::Default& d : a.defaults)
    if (d.name == "sequence" || d.name == "precision")
      fmt::print("default: {} {} ({})\n", d.name, d.value, d.why);
  report::Table table;
  table.columns = {{"devices", Align::kRight},  {"least memory", Align::kRight},
                   {"of what is usable"},       {"with"},
                   {"best MFU", Align::kRight}, {"with"}};
  for (const plan::WholeCount& count : a.found.counts)
    table.rows.push_back(
        {std::to_string(count.num_devices), format_bytes(count.smallest.estimate.peak_bytes),
         memory_bar(count.smallest.estimate.peak_bytes, a.memory_limit_bytes),
         plan::describe_whole(count.smallest.strategy),
         count.best ? format_percent(whole_mfu(r, *count.best)) : "–",
         count.best ? plan::describe_whole(count.best->strategy) : "nothing fits"});
  table.max_width = report::console_width();
  fmt::print("\n{}\n", report::to_text(table));
  fmt::print("{}", fewest_sentence(a.found.num_devices, a.found.num_not_looked_at, a.own_devices));
  for (const plan::WholeCount& count : a.found.counts)
    if (count.num_devices == a.found.num_devices)
      fmt::print("the best there: {}\nwhat limits it: {}\n",
                 plan::describe_whole(count.best->strategy), plan::limits(count.best->estimate));
}

}  // namespace

int answer_whole_what_if(const WholeQuestion& question) {
  const stack::Stack stack = stack::load_stack(question.stack);
  // All changes are checked before the first is planned for.
  std::vector<Machine> machines = {{.change = "", .question = question}};
  for (const std::string& change : question.what_if) {
    machines.push_back({.change = change, .question = question});
    machines.back().question.request.cluster = plan::changed(question.request.cluster, change);
  }
  std::optional<report::Progress> bar;  // not before a refusal
  const auto start = Clock::now();
  double seconds_here = 0;
  for (size_t i = 0; i < machines.size(); ++i) {
    Machine& m = machines[i];
    if (i > 0) {
      const plan::WholeRequest& here = machines.front().answer.request;
      plan::Request& asked = m.question.request;
      asked.num_devices = here.num_devices;
      asked.sequence = here.sequence;
      asked.global_batch_sequences = here.global_batch_sequences;
      asked.precision = here.precision;
    }
    m.answer = whole_answer(m.question, stack, [&](int64_t done, int64_t total) {
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
    std::cout << json.dump(2) << "\n";
  } else {
    if (question.explain) {
      print_whole(here.question, here.answer, seconds_here);
      fmt::print("\n");
    }
    print_what_if(machines);
  }
  return std::ranges::any_of(machines, [](const Machine& m) { return m.best() != nullptr; }) ? 0
                                                                                             : 1;
}

int answer_whole_min_devices(const WholeQuestion& question) {
  const stack::Stack stack = stack::load_stack(question.stack);
  FewestAnswer answer{.own_devices = question.request.cluster.num_devices()};
  WholeQuestion asked = question;
  asked.request.cluster = plan::extended(question.request.cluster);
  std::optional<report::Progress> bar;  // not before a refusal
  int64_t looked_at = 0;
  const auto request_of = [&](int64_t num_devices) {
    asked.request.num_devices = num_devices;
    plan::WholeRequest request = whole_request(asked, stack, answer.defaults);
    answer.memory_limit_bytes = request.memory_limit_bytes;
    return request;
  };
  const auto progress = [&](int64_t num_devices) {
    if (!bar) bar.emplace(report::ProgressOptions{.label = "plan", .total = 0, .unit = "counts"});
    bar->set(++looked_at, fmt::format("{} devices", num_devices));
  };
  answer.found = plan::fewest_whole(asked.request.cluster, request_of, progress);
  if (bar) bar->finish();
  const plan::WholeRequest request{
      .model = &question.request.model, .cluster = &asked.request.cluster, .stack = &stack};
  if (question.json)
    std::cout << min_devices_json(request, answer).dump(2) << "\n";
  else
    print_min_devices(request, answer);
  return answer.found.num_devices ? 0 : 1;
}

}  // namespace piper::cli
