#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/report/expert_rows.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace piper::report {

double LayerRows::imbalance() const {
  const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
  if (sum == 0) return 0;
  return static_cast<double>(*std::max_element(rows.begin(), rows.end())) /
         (sum / static_cast<double>(rows.size()));
}

Json to_json(const ExpertRows& rows) {
  Json json;
  json["num_steps"] = rows.num_steps;
  if (!rows.span_ends.empty()) json["span_ends"] = rows.span_ends;
  json["layers"] = Json::array();
  for (const LayerRows& layer : rows.layers) {
    Json one{{"layer", layer.layer}, {"rows", layer.rows}};
    if (!layer.over_time.empty()) one["over_time"] = layer.over_time;
    json["layers"].push_back(std::move(one));
  }
  return json;
}

namespace {

// The last layer's: a list of rows for every span, a row for every expert.
void read_over_time(ObjectReader& reader, ExpertRows& result) {
  LayerRows& layer = result.layers.back();
  const Json* spans = reader.array("over_time");
  if (spans == nullptr) return;
  if (spans->size() != result.span_ends.size())
    reader.problem("over_time",
                   fmt::format("has {} entries; allowed: one for each of the {} span_ends",
                               spans->size(), result.span_ends.size()));
  for (const Json& span : *spans) {
    std::vector<int64_t> rows;
    bool good = span.is_array() && span.size() == layer.rows.size();
    for (size_t e = 0; good && e < span.size(); ++e) {
      good = span[e].is_number_integer() && span[e].get<int64_t>() >= 0;
      if (good) rows.push_back(span[e].get<int64_t>());
    }
    if (!good)
      return reader.problem("over_time",
                            fmt::format("allowed: lists of {} integers from 0", layer.rows.size()));
    layer.over_time.push_back(std::move(rows));
  }
}

}  // namespace

ExpertRows parse_expert_rows(const Json& json, const std::string& source) {
  constexpr int64_t kMax = int64_t{1} << 53;  // sums stay exact
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  ExpertRows result;
  result.num_steps = reader.integer("num_steps", 0, kMax);
  if (reader.has("span_ends")) result.span_ends = reader.integers("span_ends", 0, kMax);
  if (const Json* layers = reader.array("layers")) {
    for (size_t i = 0; i < layers->size(); ++i) {
      ObjectReader layer((*layers)[i], fmt::format("layers[{}]", i), &problems);
      result.layers.push_back(
          {.layer = layer.integer("layer", 0, 1 << 20), .rows = layer.integers("rows", 0, kMax)});
      if (layer.has("over_time")) read_over_time(layer, result);
      layer.refuse_unknown();
    }
  }
  reader.refuse_unknown();
  problems.finish();
  return result;
}

}  // namespace piper::report
