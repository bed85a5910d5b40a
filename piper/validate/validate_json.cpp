#include <piper/base/json.h>
#include <piper/validate/validate.h>

namespace piper::validate {
namespace {

Json errors_json(const Errors& e) {
  return {{"count", e.count}, {"median", e.median}, {"mean", e.mean}, {"worst", e.worst}};
}

Json groups_json(const std::vector<std::pair<std::string, Errors>>& groups) {
  Json json = Json::array();
  for (const auto& [name, errors] : groups) {
    Json one{{"name", name}};
    one.update(errors_json(errors));
    json.push_back(one);
  }
  return json;
}

}  // namespace

Json to_json(const PricedRow& p) {
  Json json{{"source", p.row.source}, {"model", p.row.model}};
  if (!p.is_priced()) {
    json["not_priced_because"] = p.not_priced_because;
    return json;
  }
  json["unit"] = p.row.is_fit_row() ? "GB" : p.row.unit;
  json["predicted_value"] = p.predicted_value;
  const std::optional<double> measured =
      p.row.is_fit_row() ? p.row.allocated_gb : p.row.measured_value;
  json["measured_value"] = measured ? Json(*measured) : Json();
  json["relative_error"] = measured ? Json(p.relative_error) : Json();
  if (measured && !p.is_memory) json["step_time_error"] = p.step_error;
  json["assumed_fields"] = p.assumed_fields;
  json["calibration_row"] = p.calibration_row;
  json["trainer"] = p.trainer;
  json["device"] = p.device;
  json["predicted_step_seconds"] = p.predicted_seconds;
  json["predicted_peak_bytes"] = p.predicted_bytes;
  if (p.row.is_fit_row()) {
    json["outcome"] = p.row.outcome;
    json["predicted_outcome"] = p.predicted_outcome;
  }
  return json;
}

Json to_json(const Summary& s) {
  Json json{{"rows", s.num_rows},
            {"priced", s.num_priced},
            {"grade_a", s.num_grade_a},
            {"grade_a_priced", s.num_grade_a_priced},
            {"calibration_rows", s.num_calibration},
            {"time_every_field_stated", errors_json(s.time_stated)},
            {"time_fields_assumed", errors_json(s.time_assumed)},
            {"time_moe", errors_json(s.time_moe)},
            {"time_dense", errors_json(s.time_dense)},
            {"memory", errors_json(s.memory)},
            {"memory_rows_beyond_10_percent", s.memory_beyond_tenth}};
  for (const auto& [name, groups] : s.groups) json["by_" + name] = groups_json(groups);
  json["leave_one_source_out"] = groups_json(s.leave_one_out);
  json["fit"] = {{"ran", s.fit.ran},
                 {"ran_called_feasible", s.fit.ran_called_feasible},
                 {"oom", s.fit.oom},
                 {"oom_called_infeasible", s.fit.oom_called_infeasible}};
  return json;
}

}  // namespace piper::validate
