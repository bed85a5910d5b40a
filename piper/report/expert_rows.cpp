#include <fmt/format.h>
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
  json["layers"] = Json::array();
  for (const LayerRows& layer : rows.layers) {
    json["layers"].push_back(Json{{"layer", layer.layer}, {"rows", layer.rows}});
  }
  return json;
}

ExpertRows parse_expert_rows(const Json& json, const std::string& source) {
  constexpr int64_t kMax = int64_t{1} << 53;  // sums stay exact
  Problems problems(source);
  ObjectReader reader(json, "", &problems);
  ExpertRows result;
  result.num_steps = reader.integer("num_steps", 0, kMax);
  if (const Json* layers = reader.array("layers")) {
    for (size_t i = 0; i < layers->size(); ++i) {
      ObjectReader layer((*layers)[i], fmt::format("layers[{}]", i), &problems);
      result.layers.push_back(
          {.layer = layer.integer("layer", 0, 1 << 20), .rows = layer.integers("rows", 0, kMax)});
      layer.refuse_unknown();
    }
  }
  reader.refuse_unknown();
  problems.finish();
  return result;
}

}  // namespace piper::report
