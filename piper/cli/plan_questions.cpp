#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/plan_questions.h>
#include <piper/plan/fewest_devices.h>
#include <piper/plan/what_if.h>
#include <piper/report/progress.h>
#include <piper/report/table.h>

#include <algorithm>
#include <iostream>
#include <optional>

namespace piper::cli {
namespace {

using plan::Planned;
using report::Align;

std::string bytes(int64_t count) { return format_bytes(static_cast<double>(count)); }

std::string axes(const strategy::Strategy& s) {
  return fmt::format("pp {} x ep {} x dp {}, {} x {} sequences, {}, recompute {}", s.mesh.pp,
                     s.mesh.ep, s.mesh.dp, s.num_micro_batches, s.micro_batch_sequences,
                     strategy::name(s.schedule), strategy::name(s.recompute));
}

Json planned_json(const Planned& planned) { return strategy::to_json(planned.strategy); }

struct Machine {
  std::string change;  // empty: as it is
  plan::Plan plan;
  const Planned* best() const {
    return plan.strategies.empty() ? nullptr : &plan.strategies.front();
  }
};

Json what_if_json(const std::vector<Machine>& machines) {
  const Planned* base = machines.front().best();
  Json json = Json::array();
  for (const Machine& m : machines) {
    Json entry{{"change", m.change}, {"memory_limit_bytes", m.plan.memory_limit_bytes}};
    if (m.best() != nullptr) entry["best"] = planned_json(*m.best());
    if (m.best() != nullptr && base != nullptr)
      entry["speedup"] = base->prediction.step_seconds / m.best()->prediction.step_seconds;
    json.push_back(entry);
  }
  return {{"what_if", json}};
}

WhatIfRow row_of(const Machine& m) {
  WhatIfRow row{.change = m.change};
  if (const Planned* best = m.best()) {
    const plan::Prediction& p = best->prediction;
    row.fits = true;
    row.step_seconds = p.step_seconds;
    row.mfu = p.mfu;
    row.peak_bytes = static_cast<double>(p.peak_bytes);
    row.strategy = axes(best->strategy);
    row.limits = plan::limits(p);
  } else if (m.plan.nearest) {
    row.peak_bytes = static_cast<double>(m.plan.nearest->prediction.peak_bytes);
  }
  return row;
}

void print_what_if(const plan::Request& request, const std::vector<Machine>& machines) {
  const plan::Plan& here = machines.front().plan;
  fmt::print("{} on {} devices of {}; {} sequences of {} tokens a step, {}\n\n", request.model.name,
             here.num_devices, request.cluster.name, here.global_batch_sequences, here.sequence,
             strategy::name(here.precision));
  std::vector<WhatIfRow> rows;
  for (const Machine& m : machines) rows.push_back(row_of(m));
  print_what_if_table(rows);
}

Json count_json(const plan::DeviceCount& count) {
  Json json{{"num_devices", count.num_devices}, {"fits", count.best.has_value()}};
  if (count.smallest) {
    json["smallest"] = planned_json(*count.smallest);
    json["smallest_peak_bytes"] = count.smallest->prediction.peak_bytes;
  }
  if (count.best) {
    json["best"] = planned_json(*count.best);
    json["mfu"] = count.best->prediction.mfu;
  }
  return json;
}

Json min_devices_json(const plan::Request& request, const plan::FewestDevices& found) {
  Json json{{"model", request.model.name},
            {"cluster", request.cluster.name},
            {"memory_limit_bytes", found.memory_limit_bytes},
            {"beyond_cluster", found.beyond_cluster}};
  json["min_devices"] = found.num_devices ? Json(*found.num_devices) : Json();
  json["num_not_looked_at"] = found.num_not_looked_at;
  json["counts"] = Json::array();
  for (const plan::DeviceCount& count : found.counts) json["counts"].push_back(count_json(count));
  return json;
}

// The axes in a few characters.
std::string short_axes(const strategy::Strategy& s) {
  return fmt::format("pp {} ep {} dp {}, {}", s.mesh.pp, s.mesh.ep, s.mesh.dp,
                     strategy::name(s.recompute));
}

void print_min_devices(const plan::Request& request, const plan::FewestDevices& found) {
  fmt::print("{} on {} ({}); {} usable a device\n", request.model.name, request.cluster.name,
             request.cluster.device, bytes(found.memory_limit_bytes));
  for (const plan::Default& d : found.defaults)
    if (d.name == "sequence" || d.name == "precision")
      fmt::print("default: {} {} ({})\n", d.name, d.value, d.why);
  report::Table table;
  table.columns = {{"devices", Align::kRight},  {"least memory", Align::kRight},
                   {"of what is usable"},       {"with"},
                   {"best MFU", Align::kRight}, {"with"}};
  for (const plan::DeviceCount& count : found.counts)
    table.rows.push_back(
        {std::to_string(count.num_devices),
         count.smallest ? bytes(count.smallest->prediction.peak_bytes) : "–",
         count.smallest ? memory_bar(static_cast<double>(count.smallest->prediction.peak_bytes),
                                     static_cast<double>(found.memory_limit_bytes))
                        : "",
         count.smallest ? short_axes(count.smallest->strategy) : "no strategy",
         count.best ? format_percent(count.best->prediction.mfu) : "–",
         count.best ? short_axes(count.best->strategy) : "nothing fits"});
  table.max_width = report::console_width();
  fmt::print("\n{}\n", report::to_text(table));
  fmt::print("{}", fewest_sentence(found.num_devices, found.num_not_looked_at,
                                   request.cluster.num_devices()));
}

}  // namespace

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
  fmt::print("{}", report::to_text(table));
}

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

int answer_what_if(const plan::Request& request, const std::vector<std::string>& changes,
                   bool json) {
  // All changes are checked before the first is planned for.
  std::vector<cluster::Cluster> clusters = {request.cluster};
  for (const std::string& change : changes)
    clusters.push_back(plan::changed(request.cluster, change));
  std::optional<report::Progress> bar;  // not before a refusal
  std::vector<Machine> machines;
  plan::Request asked = request;
  for (size_t i = 0; i < clusters.size(); ++i) {
    asked.cluster = clusters[i];
    machines.push_back({i == 0 ? "" : changes[i - 1], plan::make_plan(asked)});
    // The same work on every machine.
    asked.num_devices = machines.front().plan.num_devices;
    asked.sequence = machines.front().plan.sequence;
    asked.global_batch_sequences = machines.front().plan.global_batch_sequences;
    asked.precision = machines.front().plan.precision;
    if (!bar)
      bar.emplace(report::ProgressOptions{
          .label = "plan", .total = std::ssize(clusters), .unit = "machines"});
    bar->set(static_cast<int64_t>(i + 1), machines.back().change);
  }
  if (bar) bar->finish();
  if (json)
    std::cout << what_if_json(machines).dump(2) << "\n";
  else
    print_what_if(request, machines);
  return std::ranges::any_of(machines, [](const Machine& m) { return m.best() != nullptr; }) ? 0
                                                                                             : 1;
}

int answer_min_devices(const plan::Request& request, bool json) {
  std::optional<report::Progress> bar;  // not before a refusal
  int64_t looked_at = 0;
  const plan::FewestDevices found = plan::fewest_devices(request, [&](int64_t devices) {
    if (!bar) bar.emplace(report::ProgressOptions{.label = "plan", .total = 0, .unit = "counts"});
    bar->set(++looked_at, fmt::format("{} devices", devices));
  });
  if (bar) bar->finish();
  if (json)
    std::cout << min_devices_json(request, found).dump(2) << "\n";
  else
    print_min_devices(request, found);
  return found.num_devices ? 0 : 1;
}

}  // namespace piper::cli
