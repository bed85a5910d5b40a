// The forms of a trace; all end as shares by step, layer and expert.
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/printable.h>
#include <piper/cost/load_distribution.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

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
                                   printable(std::string(cell)), kMostRows));
  return value;
}

// Where a header has the columns that are no expert's; they come first, in any order.
struct Columns {
  size_t step = 0, layer = 0, num = 0;  // num: how many they are
  std::optional<size_t> rank;
};

Columns columns_of(const std::vector<std::string_view>& header, const std::string& where) {
  const auto at = [&](std::string_view name) -> std::optional<size_t> {
    for (size_t i = 0; i < std::min<size_t>(header.size(), 3); ++i)
      if (header[i] == name) return i;
    return std::nullopt;
  };
  const std::optional<size_t> step = at("iter"), layer = at("layer"), rank = at("rank");
  const size_t num = rank ? 3 : 2;
  if (!step || !layer || *step >= num || *layer >= num || header.size() <= num)
    throw InvalidInput(where +
                       ": is no header; allowed: iter,layer,e0,e1,... or iter,rank,layer,e0,...");
  return {.step = *step, .layer = *layer, .num = num, .rank = rank};
}

void add(Counts& sum, const Counts& counts) {
  for (size_t i = 0; i < counts.size(); ++i) sum[i] += counts[i];
}

Steps from_csv(std::string_view text, const std::string& source) {
  Steps steps;
  std::set<std::tuple<int64_t, int64_t, int64_t>> ranks;  // step, layer, rank
  std::optional<Columns> columns;
  size_t num_cells = 0;
  int64_t line_number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = fmt::format("{}: line {}", source, line_number);
    const std::vector<std::string_view> cells = split(line);
    if (!columns) {
      columns = columns_of(cells, where);
      num_cells = cells.size();
      continue;
    }
    if (cells.size() != num_cells)
      throw InvalidInput(fmt::format("{}: has {} cells; allowed: {}, as the header", where,
                                     cells.size(), num_cells));
    Counts counts;
    for (size_t i = columns->num; i < cells.size(); ++i) counts.push_back(number(cells[i], where));
    const auto step = static_cast<int64_t>(number(cells[columns->step], where));
    const auto layer = static_cast<int64_t>(number(cells[columns->layer], where));
    const auto rank =
        columns->rank ? static_cast<int64_t>(number(cells[*columns->rank], where)) : 0;
    const auto [found, is_new] = steps[step].try_emplace(layer, counts);
    if (is_new && !columns->rank) continue;
    if (!columns->rank || !ranks.emplace(step, layer, rank).second)
      throw InvalidInput(fmt::format("{}: step {}, layer {}{} appears twice", where, step, layer,
                                     columns->rank ? fmt::format(", rank {}", rank) : ""));
    if (!is_new) add(found->second, counts);
  }
  return steps;
}

// One step: counts by layer. `refuse` throws.
std::map<int64_t, Counts> layers_of(const Json& step, const std::string& where,
                                    const std::function<void(const std::string& where)>& refuse) {
  std::map<int64_t, Counts> layers;
  if (!step.is_array() || step.empty()) refuse(where);
  for (size_t layer = 0; layer < step.size(); ++layer) {
    const Json& counts = step[layer];
    if (!counts.is_array() || counts.empty()) refuse(fmt::format("{}[{}]", where, layer));
    for (const Json& count : counts) {
      if (!count.is_number() || !(count.get<double>() >= 0 && count.get<double>() <= kMostRows))
        refuse(fmt::format("{}[{}]", where, layer));
      layers[static_cast<int64_t>(layer)].push_back(count.get<double>());
    }
  }
  return layers;
}

Steps from_json(const Json& json, const std::string& source) {
  const auto refuse = [&](const std::string& where) {
    throw InvalidInput(fmt::format(
        "{}: '{}' is no trace; allowed: {{\"steps\": [[[count of expert 0, ...] of layer 0, ...], "
        "...]}} or {{\"data\": {{NAME: [[count of expert 0, ...] of layer 0, ...], ...}}}}",
        source, where));
  };
  Steps steps;
  int64_t num_steps = 0;
  if (json.contains("data") && json["data"].is_object()) {
    const Json& texts = json["data"];
    const auto is_partial = [](const std::string& name) {
      return name.find("_top1") != std::string::npos;
    };
    bool has_whole = false;
    for (const auto& [name, counts] : texts.items()) has_whole |= !is_partial(name);
    for (const auto& [name, counts] : texts.items())
      if (!has_whole || !is_partial(name))
        steps[num_steps++] = layers_of(counts, fmt::format("data['{}']", printable(name)), refuse);
    return steps;
  }
  if (!json.contains("steps") || !json["steps"].is_array()) refuse("steps");
  for (const Json& step : json["steps"]) {
    steps[num_steps] = layers_of(step, fmt::format("steps[{}]", num_steps), refuse);
    ++num_steps;
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
