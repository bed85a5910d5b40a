#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/cli/console.h>
#include <piper/report/table.h>
#include <studies/cli/statement_table.h>

#include <algorithm>
#include <string>
#include <vector>

namespace piper::studies {
namespace {

// One line a cause; of those that share one, how many.
void print_causes(const std::vector<Statement>& statements) {
  for (size_t i = 0; i < statements.size(); ++i) {
    const Statement& s = statements[i];
    const auto same = [&](const Statement& other) {
      return other.cause == s.cause && other.verdict == s.verdict;
    };
    const auto here = statements.begin() + static_cast<std::ptrdiff_t>(i);
    if (s.cause.empty() || std::any_of(statements.begin(), here, same)) continue;
    const auto others = std::count_if(here + 1, statements.end(), same);
    cli::say("{}: {}{}: {}\n", name(s.verdict), s.what,
             others > 0 ? fmt::format(", and {} more", others) : "", s.cause);
  }
}

}  // namespace

void print_statements(const Paper& paper, bool json) {
  const std::vector<Statement> statements = paper.statements();
  const std::vector<std::string> assumptions = paper.assumptions();
  if (json) {
    Json all{{"assumptions", assumptions}, {"statements", Json::array()}};
    for (const Statement& s : statements) all["statements"].push_back(to_json(s));
    cli::say_json(all);
    return;
  }
  report::Table table;
  table.columns = {{.header = "statement", .max_width = 70}, {"where"},  {"printed"}, {"predicted"},
                   {"error", report::Align::kRight},         {"verdict"}};
  for (const Statement& s : statements)
    table.rows.push_back({s.what, s.where, s.printed, s.predicted,
                          s.error ? fmt::format("{:+.1f} %", 100 * *s.error) : "",
                          name(s.verdict)});
  cli::say("{}\n", cli::Lines{report::to_text(table)});
  print_causes(statements);
  for (const std::string& a : assumptions) cli::say("assumed: {}\n", a);
}

}  // namespace piper::studies
