// The two forms of a trace; both end as shares by step, layer and expert.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/cost/load_distribution.h>

#include <charconv>
#include <map>
#include <numeric>
#include <string_view>

namespace piper::cost {
namespace {

using Counts = std::vector<double>;                          // by expert
using Steps = std::map<int64_t, std::map<int64_t, Counts>>;  // by step and layer

constexpr double kMostRows = 1e15;

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> cells;
  for (size_t at = 0;; ++at) {
    const size_t comma = line.find(',', at);
    cells.push_back(line.substr(at, comma == std::string_view::npos ? comma : comma - at));
    if (comma == std::string_view::npos) return cells;
    at = comma;
  }
}

double number(std::string_view cell, const std::string& where) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size() ||
      !(value >= 0 && value <= kMostRows))
    throw InvalidInput(fmt::format("{}: '{}'; allowed: a count from 0 to {}", where,
                                   cell.substr(0, 40), kMostRows));
  return value;
}

Steps from_csv(std::string_view text, const std::string& source) {
  Steps steps;
  size_t num_cells = 0;
  int64_t line_number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = fmt::format("{}: line {}", source, ++line_number);
    const std::vector<std::string_view> cells = split(line);
    if (num_cells == 0) {
      if (cells.size() < 3 || cells[0] != "iter" || cells[1] != "layer")
        throw InvalidInput(where + ": is no header; allowed: iter,layer,e0,e1,...");
      num_cells = cells.size();
      continue;
    }
    if (cells.size() != num_cells)
      throw InvalidInput(fmt::format("{}: has {} cells; allowed: {}, as the header", where,
                                     cells.size(), num_cells));
    Counts counts;
    for (size_t i = 2; i < cells.size(); ++i) counts.push_back(number(cells[i], where));
    const auto step = static_cast<int64_t>(number(cells[0], where));
    const auto layer = static_cast<int64_t>(number(cells[1], where));
    if (!steps[step].try_emplace(layer, std::move(counts)).second)
      throw InvalidInput(fmt::format("{}: step {}, layer {} appears twice", where, step, layer));
  }
  return steps;
}

Steps from_json(const Json& json, const std::string& source) {
  const auto refuse = [&](const std::string& where) {
    throw InvalidInput(fmt::format(
        "{}: '{}' is no trace; allowed: {{\"steps\": [[[count of expert 0, ...] of layer 0, ...], "
        "...]}}",
        source, where));
  };
  if (!json.is_object() || !json.contains("steps") || !json["steps"].is_array()) refuse("steps");
  Steps steps;
  const Json& all = json["steps"];
  for (size_t step = 0; step < all.size(); ++step) {
    const std::string where = fmt::format("steps[{}]", step);
    if (!all[step].is_array() || all[step].empty()) refuse(where);
    for (size_t layer = 0; layer < all[step].size(); ++layer) {
      const Json& counts = all[step][layer];
      if (!counts.is_array() || counts.empty()) refuse(fmt::format("{}[{}]", where, layer));
      for (const Json& count : counts) {
        if (!count.is_number() || !(count.get<double>() >= 0 && count.get<double>() <= kMostRows))
          refuse(fmt::format("{}[{}]", where, layer));
        steps[static_cast<int64_t>(step)][static_cast<int64_t>(layer)].push_back(
            count.get<double>());
      }
    }
  }
  return steps;
}

}  // namespace

std::vector<std::vector<std::vector<double>>> parse_load_trace(const std::string& text,
                                                               const std::string& source) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && text[first] == '{';
  const Steps steps =
      is_json ? from_json(parse_json(text, source), source) : from_csv(text, source);
  if (steps.empty()) throw InvalidInput(source + ": holds no step; allowed: at least one");
  std::vector<std::vector<std::vector<double>>> trace;
  for (const auto& [step, layers] : steps) {
    std::vector<std::vector<double>>& of_step = trace.emplace_back();
    for (const auto& [layer, counts] : layers) {
      const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
      if (!(sum > 0))
        throw InvalidInput(fmt::format("{}: step {}, layer {} has no rows; allowed: at least one",
                                       source, step, layer));
      std::vector<double>& share = of_step.emplace_back(counts);
      for (double& part : share) part /= sum;
    }
  }
  return trace;
}

}  // namespace piper::cost
