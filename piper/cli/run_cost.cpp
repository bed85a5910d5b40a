#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cli/run_cost.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

namespace piper::cli {
namespace {

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

double tokens_of(const std::string& text) {
  std::string_view digits = text;
  double factor = 1;
  for (const auto& [suffix, value] : {std::pair{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}})
    if (!digits.empty() && digits.back() == suffix) {
      factor = value;
      digits.remove_suffix(1);
      break;
    }
  const std::optional<double> number = number_of(digits);
  if (!number || *number * factor < 1 || *number * factor > 1e18)
    throw InvalidInput(
        fmt::format("--tokens is '{}'; allowed: a number from 1 to 1e18, such as 15T (K, M, B, T: "
                    "10^3 to 10^12)",
                    text));
  return *number * factor;
}

double days_of(const RunCost& cost, const plan::Prediction& p) {
  return cost.tokens / p.tokens_per_second / 86400;
}

}  // namespace

void add_run_cost_flags(Subcommand command, RunCostFlags& flags) {
  command
      .add_option("--tokens", flags.tokens,
                  "of a whole run, such as 15T: the plan says its days and device-hours")
      .type_name("TOKENS");
  command
      .add_option("--price", flags.price, "of a device for an hour: with --tokens, what it costs")
      .type_name("PRICE");
}

RunCost run_cost_of(const RunCostFlags& flags) {
  RunCost cost;
  if (!flags.tokens.empty()) cost.tokens = tokens_of(flags.tokens);
  if (flags.price.empty()) return cost;
  const std::optional<double> price = number_of(flags.price);
  if (!price || *price < 0)
    throw InvalidInput(fmt::format(
        "--price is '{}'; allowed: a number from 0 on, of a device for an hour", flags.price));
  if (!cost.is_asked())
    throw InvalidInput("--price says what a run of --tokens costs; give --tokens too");
  cost.price = *price;
  return cost;
}

std::string to_text(const RunCost& cost, const plan::Prediction& p, int64_t num_devices) {
  const double days = days_of(cost, p), hours = days * 24 * static_cast<double>(num_devices);
  std::string text = fmt::format("{} tokens: {:.1f} days, {} device-hours",
                                 format_count(cost.tokens), days, format_count(hours));
  if (cost.price >= 0)
    text += fmt::format(", {} at {} an hour", format_count(hours * cost.price), cost.price);
  return text;
}

Json to_json(const RunCost& cost, const plan::Prediction& p, int64_t num_devices) {
  const double days = days_of(cost, p), hours = days * 24 * static_cast<double>(num_devices);
  Json json{{"tokens", cost.tokens}, {"days", days}, {"device_hours", hours}};
  if (cost.price >= 0) json["cost"] = hours * cost.price;
  return json;
}

}  // namespace piper::cli
