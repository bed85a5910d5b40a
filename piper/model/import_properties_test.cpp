// Nonsense in place of any value of any built-in's config: one clean refusal or a model that can be
// counted, never anything else, and soon.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/model/count.h>
#include <piper/model/import.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

namespace piper::model {
namespace {

constexpr int64_t kTooMany = 1'000'000;  // layers
// As they would stand in a file. The last two are numbers that JSON allows and no integer or double
// is.
const std::vector<std::string> kNonsense{
    "0",       "-1",   "3.7",   "\"many\"",           "null", "[]", "{}", "[[1, 2]]", "true",
    "1000000", "-0.0", "1e400", "9223372036854775808"};

struct Outcome {
  std::vector<std::string> problems;  // none: accepted
  bool names(const std::string& key) const {
    return std::ranges::any_of(problems, [&](const std::string& p) {
      return p.find("'" + key + "'") != std::string::npos;
    });
  }
};

Outcome outcome_of(const std::string& text) {
  try {
    const Model model = import_config(parse_json(text, "c.json"), "c.json");
    CHECK(count_parameters(model).total() >= 0);
    CHECK(active_parameters(model) <= count_parameters(model).total());
    return {};
  } catch (const InvalidInput& error) {
    return {error.problems()};
  }
}

// The document with other texts in place of some values.
std::string text_with(const Json& config,
                      const std::vector<std::pair<std::string, std::string>>& values) {
  std::string text;
  for (const auto& [key, value] : config.items()) {
    const auto found = std::ranges::find(values, key, &std::pair<std::string, std::string>::first);
    text += fmt::format("{}\"{}\": {}", text.empty() ? "{" : ", ", key,
                        found == values.end() ? value.dump() : found->second);
  }
  return text + "}";
}

void check_clean(const Outcome& outcome) {
  for (const std::string& problem : outcome.problems) {
    CAPTURE(problem);
    const bool counts_the_others = problem.starts_with("... and ");
    CHECK((counts_the_others || problem.starts_with("c.json: ")));
    CHECK(problem.find('\n') == std::string::npos);
    CHECK(problem.size() < 500);
  }
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace

TEST_CASE("nonsense for any value of any built-in's config is refused in clean lines or harmless") {
  int64_t num_refused = 0, num_accepted = 0;
  for (const std::string& name : builtin_models()) {
    const Json config = load_config(name);
    for (const auto& [key, value] : config.items())
      for (const std::string& nonsense : kNonsense) {
        INFO(name, ": ", key, " is ", nonsense);
        const double start = cpu_seconds();
        const Outcome outcome = outcome_of(text_with(config, {{key, nonsense}}));
        CHECK(cpu_seconds() - start < 1);
        check_clean(outcome);
        ++(outcome.problems.empty() ? num_accepted : num_refused);
      }
  }
  MESSAGE(num_refused, " refused, ", num_accepted, " accepted");
  CHECK(num_refused > num_accepted);
}

TEST_CASE("every pair of nonsensical sizes is named at once, each with what is allowed") {
  const std::vector<std::string> sizes{
      "hidden_size",       "num_hidden_layers", "num_attention_heads", "vocab_size",
      "intermediate_size", "num_local_experts", "num_experts_per_tok"};
  const std::vector<std::string> values{"0", "-1", "3.7", "\"many\"", "{}", "true"};
  const Json config = load_config("mixtral-8x7b");
  for (const std::string& a : sizes)
    for (const std::string& b : sizes)
      for (size_t i = 0; a != b && i < values.size(); ++i) {
        const std::string& other = values[(i + 1) % values.size()];
        INFO(a, " is ", values[i], ", ", b, " is ", other);
        const Outcome outcome = outcome_of(text_with(config, {{a, values[i]}, {b, other}}));
        CHECK(outcome.names(a));
        CHECK(outcome.names(b));
        for (const std::string& p : outcome.problems)
          CHECK(p.find("allowed: ") != std::string::npos);
      }
}

TEST_CASE("a million layers, and a million brackets, are refused within a second") {
  const Json config = load_config("mixtral-8x7b");
  const std::string deep(1'000'000, '[');
  for (const std::string& text :
       {text_with(config, {{"num_hidden_layers", std::to_string(kTooMany)}}),
        text_with(config, {{"hidden_act", deep}}),
        text_with(config, {{"hidden_act", deep + std::string(deep.size(), ']')}})}) {
    const double start = cpu_seconds();
    CHECK(outcome_of(text).problems.size() == 1);
    CHECK(cpu_seconds() - start < 1);
  }
}

}  // namespace piper::model
