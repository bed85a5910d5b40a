// The head of a plan's page, what was ranked, and the families that lost.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <piper/base/units.h>
#include <piper/report/html.h>
#include <piper/report/plan_sections.h>

#include <algorithm>

namespace piper::report {
namespace {

std::string tiles(const PlanDocument& plan) {
  if (plan.ranked.empty()) return absent("Nothing fits this machine.");
  const PlanRow& best = plan.ranked.front();
  std::string out = "<div class=\"tiles\">\n";
  out += tile("MFU", percent(best.mfu), "predicted");
  out += tile("step time", seconds(best.step_seconds), "predicted");
  out += tile(
      "peak memory a device", bytes(best.peak_bytes),
      plan.memory_limit_bytes ? "of " + format_bytes(*plan.memory_limit_bytes) + " usable" : "");
  return out + "</div>\n";
}

class Facts {
 public:
  void add(std::string_view label, const std::string& text) {
    out_ += "<dt>" + escape(label) + "</dt><dd>" + escape(text) + "</dd>\n";
  }
  void add_count(std::string_view label, int64_t count) {
    if (count > 0) add(label, std::to_string(count));
  }
  std::string finish() const { return out_.empty() ? "" : "<dl>\n" + out_ + "</dl>\n"; }

 private:
  std::string out_;
};

// "'mesh.vpp' is 2: several chunks of layers a rank is priced, not executed" is "vpp" in a table of
// many rows.
std::string axis_of(const std::string& reason) {
  const size_t begin = reason.find('\''), end = reason.find('\'', begin + 1);
  if (begin == std::string::npos || end == std::string::npos) return reason;
  const std::string key = reason.substr(begin + 1, end - begin - 1);
  return key.substr(key.rfind('.') + 1);
}

// Trainers that take it, and what this Piper's executor lacks for it.
std::string who_runs(const PlanRow& row) {
  std::vector<std::string> lacks;
  if (!row.untrainable.empty()) lacks.emplace_back("the model");
  for (const std::string& reason : row.not_runnable) lacks.push_back(axis_of(reason));
  std::string text = fmt::format("{}", fmt::join(row.runs_with, ", "));
  if (!lacks.empty())
    text += fmt::format("{}this Piper lacks: {}", text.empty() ? "" : "; ", fmt::join(lacks, ", "));
  return text;
}

std::string under_heavy_load(const PlanRow& row) {
  if (!row.heavy_step_seconds) return "–";
  return seconds(row.heavy_step_seconds) + ", " + bytes(row.heavy_peak_bytes) +
         (row.fits_heavy_load ? "" : ": does not fit");
}

// "at zipf:0.3", of rows that say so.
std::string heavy_load_of(const std::vector<PlanRow>& rows) {
  for (const PlanRow& row : rows)
    if (!row.heavy_load.empty()) return "at " + row.heavy_load;
  return "at an uneven load";
}

std::string rejected_table(const PlanDocument& plan) {
  if (plan.rejected.empty()) return "";
  HtmlTable table{.columns = {{"refused"}, {"because"}, {"smallest change that would admit it"}}};
  for (const RejectedFamily& r : plan.rejected)
    table.rows.push_back({.cells = {{r.family, "strong"}, {r.constraint}, {r.smallest_change}}});
  return to_html(table);
}

}  // namespace

std::string words_of(const PlanRow& row) {
  std::string words = row.mesh;
  if (!row.further.empty()) words += " · " + row.further;
  words += fmt::format(", {} × {}", row.num_micro_batches, row.micro_batch_sequences);
  if (!row.schedule.empty()) words += ", " + row.schedule;
  if (!row.recompute.empty()) words += ", recompute " + row.recompute;
  return words;
}

std::string plan_header(const PlanDocument& plan) {
  std::string out = "<header>\n<p class=\"brand\">Piper</p>\n<h1>";
  out += escape(plan.model.empty() ? "A model that was not named" : plan.model);
  if (!plan.cluster.empty()) out += " <span>on</span> " + escape(plan.cluster);
  out += "</h1>\n";
  if (!plan.ranked.empty()) out += paragraph("The best: " + words_of(plan.ranked.front()));
  Facts facts;
  facts.add_count("devices", plan.num_devices);
  facts.add_count("tokens of a sequence", plan.sequence);
  facts.add_count("sequences of a step", plan.global_batch_sequences);
  if (!plan.precision.empty()) facts.add("precision", plan.precision);
  if (!plan.trainer.empty()) facts.add("as this trainer would run it", plan.trainer);
  facts.add_count("strategies priced", plan.num_considered);
  for (const auto& [name, text] : plan.defaults) facts.add("default " + name, text);
  return out + tiles(plan) + facts.finish() + "</header>\n";
}

namespace {

// The best of each kind, against the best of all.
std::string choices_table(const std::vector<PlanRow>& choices) {
  HtmlTable table{.columns = {{"what it is"},
                              {"strategy"},
                              {"MFU", Align::kRight},
                              {"step time", Align::kRight},
                              {"slower", Align::kRight},
                              {"peak memory", Align::kRight},
                              {heavy_load_of(choices), Align::kRight},
                              {"who can run it"}}};
  const std::optional<double>& best = choices.front().step_seconds;
  for (const PlanRow& c : choices)
    table.rows.push_back({.cells = {{c.what, "words"},
                                    {words_of(c)},
                                    {percent(c.mfu)},
                                    {seconds(c.step_seconds)},
                                    {best && c.step_seconds && *best > 0
                                         ? format_percent(*c.step_seconds / *best - 1)
                                         : "–"},
                                    {bytes(c.peak_bytes)},
                                    {under_heavy_load(c)},
                                    {who_runs(c)}},
                          .css_class = &c == &choices.front() ? "chosen" : ""});
  return paragraph("What there is to choose from: the best, and the best of other kinds.") +
         to_html(table) + paragraph("The ranking behind it:");
}

}  // namespace

std::string ranking_section(const PlanDocument& plan, size_t max_rows) {
  std::string out;
  for (const std::string& note : plan.notes) out += paragraph(note);
  if (plan.ranked.empty())
    return out + absent("No strategy fits; the families below say what they lack.");
  if (!plan.choices.empty()) out += choices_table(plan.choices);
  HtmlTable table{.columns = {{"#", Align::kRight},
                              {"mesh"},
                              {"states, norms, placement"},
                              {"schedule"},
                              {"micro-batches × sequences", Align::kRight},
                              {"recompute"},
                              {"MFU", Align::kRight},
                              {"step time", Align::kRight},
                              {"peak memory", Align::kRight},
                              {heavy_load_of(plan.ranked), Align::kRight},
                              {"who can run it"}}};
  for (size_t i = 0; i < std::min(plan.ranked.size(), max_rows); ++i) {
    const PlanRow& r = plan.ranked[i];
    table.rows.push_back(
        {.cells = {{std::to_string(i + 1)},
                   {r.mesh, "strong"},
                   {r.further},
                   {r.schedule},
                   {fmt::format("{} × {}", r.num_micro_batches, r.micro_batch_sequences)},
                   {r.recompute},
                   {percent(r.mfu)},
                   {seconds(r.step_seconds)},
                   {bytes(r.peak_bytes)},
                   {under_heavy_load(r)},
                   {who_runs(r)}},
         .css_class = i == 0 ? "chosen" : ""});
  }
  out += to_html(table);
  if (plan.ranked.size() > max_rows)
    out += paragraph(
        fmt::format("{} further strategies fit and rank lower.", plan.ranked.size() - max_rows));
  return out;
}

std::string families_section(const PlanDocument& plan) {
  if (plan.families.empty())
    return plan.rejected.empty()
               ? absent("This document keeps no families: piper plan --json does.")
               : rejected_table(plan);
  HtmlTable table{.columns = {{"family"},
                              {"its best"},
                              {"MFU", Align::kRight},
                              {"memory", Align::kRight},
                              {"why it lost"},
                              {"smallest change that would revive it"},
                              {"priced", Align::kRight}}};
  for (const PlanFamily& f : plan.families) {
    const PlanRow* row = f.best ? &*f.best : f.nearest ? &*f.nearest : nullptr;
    table.rows.push_back({.cells = {{f.family, "strong"},
                                    {row ? words_of(*row) : "–"},
                                    {f.best ? percent(f.best->mfu) : "–"},
                                    {row ? bytes(row->peak_bytes) : "–"},
                                    {f.why_it_lost},
                                    {f.smallest_change},
                                    {std::to_string(f.num_priced)}},
                          .css_class = f.wins ? "chosen" : ""});
  }
  return to_html(table) + rejected_table(plan);
}

}  // namespace piper::report
