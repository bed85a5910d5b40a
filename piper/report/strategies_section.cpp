// What the planner ranked, what it refused, and why.
#include <fmt/format.h>
#include <piper/base/units.h>
#include <piper/report/html.h>
#include <piper/report/sections.h>

#include <algorithm>

namespace piper::report {
namespace {

bool is_measured(const PlanRow& row) {
  return row.measured_mfu || row.measured_step_seconds || row.measured_peak_bytes;
}

HtmlTable::Row html_row(size_t place, const PlanRow& row, bool with_measured) {
  HtmlTable::Row out{
      .cells = {{fmt::format("{}", place)},
                {row.mesh, "strong"},
                {row.schedule},
                {fmt::format("{} × {}", row.num_micro_batches, row.micro_batch_sequences)},
                {row.recompute},
                {percent(row.mfu)},
                {seconds(row.step_seconds)},
                {bytes(row.peak_bytes)}},
      .css_class = row.chosen ? "chosen" : ""};
  if (with_measured) {
    out.cells.push_back({percent(row.measured_mfu), "measured"});
    out.cells.push_back({seconds(row.measured_step_seconds), "measured"});
    out.cells.push_back({bytes(row.measured_peak_bytes), "measured"});
  }
  return out;
}

std::string rows_table(const std::vector<PlanRow>& rows, size_t max_rows) {
  const bool with_measured = std::any_of(rows.begin(), rows.end(), is_measured);
  HtmlTable table{.columns = {{"#", Align::kRight},
                              {"mesh"},
                              {"schedule"},
                              {"micro-batches × sequences", Align::kRight},
                              {"recompute"},
                              {"MFU", Align::kRight},
                              {"step time", Align::kRight},
                              {"peak memory", Align::kRight}}};
  if (with_measured) {
    for (const char* header : {"MFU, measured", "step time, measured", "peak memory, measured"}) {
      table.columns.push_back({header, Align::kRight});
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    // Beyond the first ones, those that were run are still worth a row.
    if (i >= max_rows && !rows[i].chosen && !is_measured(rows[i])) continue;
    table.rows.push_back(html_row(i + 1, rows[i], with_measured));
  }
  std::string out = to_html(table);
  if (table.rows.size() < rows.size()) {
    out += paragraph(
        fmt::format("{} further strategies fit and rank lower.", rows.size() - table.rows.size()));
  }
  return out;
}

std::string rejected_table(const std::vector<RejectedFamily>& rejected) {
  if (rejected.empty()) return "";
  HtmlTable table{.columns = {{"refused"}, {"because"}, {"smallest change that would admit it"}}};
  for (const RejectedFamily& r : rejected) {
    table.rows.push_back({.cells = {{r.family, "strong"}, {r.constraint}, {r.smallest_change}}});
  }
  return fmt::format(
      "<details><summary>{} refused, and why</summary>\n{}</details>\n",
      rejected.size() == 1 ? "One family was" : fmt::format("{} families were", rejected.size()),
      to_html(table));
}

}  // namespace

std::string strategies_section(const PlanDocument* strategies, size_t max_rows) {
  if (strategies == nullptr) return absent("No plan was kept with this run.");
  std::string out;
  for (const std::string& note : strategies->notes) out += paragraph(note);
  out += strategies->ranked.empty() ? absent("No strategy fits this machine.")
                                    : rows_table(strategies->ranked, max_rows);
  return out + rejected_table(strategies->rejected);
}

}  // namespace piper::report
