// to_json: what parse_cluster reads. Facts that are not stated are left out.
#include <piper/base/json.h>
#include <piper/cluster/cluster.h>

namespace piper::cluster {
namespace {

void put_grid(const std::string& key, const Grid& grid, Json* json) {
  if (grid.empty()) return;
  Json out;
  for (size_t i = 0; i < grid.axes.size(); ++i) out[grid.axes[i]] = grid.points[i];
  out["values"] = grid.rate;
  (*json)[key] = std::move(out);
}

Json compute_json(const Compute& compute) {
  Json out;
  out["peak_flops_per_second"] = compute.peak_flops_per_second;
  if (compute.gemm_efficiency > 0) out["gemm_efficiency"] = compute.gemm_efficiency;
  put_grid("gemm_flops_per_second", compute.gemm, &out);
  put_grid("attention_flops_per_second", compute.attention, &out);
  put_grid("attention_backward_flops_per_second", compute.attention_backward, &out);
  return out;
}

Json level_json(const Level& level) {
  Json out;
  out["name"] = level.name;
  out["num_members"] = level.num_members;
  out["bandwidth_bytes_per_second"] = level.link.bytes_per_second;
  out["latency_seconds"] = level.link.latency_seconds;
  if (level.num_nics > 0) out["num_nics"] = level.num_nics;
  if (level.nic_bytes_per_second > 0) out["nic_bytes_per_second"] = level.nic_bytes_per_second;
  return out;
}

template <class Value>
Json column(const Curve& curve, const Value& value) {
  Json out = Json::array();
  for (const CurvePoint& point : curve.points) out.push_back(value(point));
  return out;
}

Json points_json(const Curve& curve) {
  Json out;
  for (size_t axis = 0; axis < curve.axes.size(); ++axis)
    out[curve.axes[axis]] = column(curve, [&](const CurvePoint& p) { return p.at[axis]; });
  out["amount"] = column(curve, [](const CurvePoint& p) { return p.amount; });
  out["seconds"] = column(curve, [](const CurvePoint& p) { return p.timing.seconds; });
  out["seconds_low"] = column(curve, [](const CurvePoint& p) { return p.timing.low_seconds; });
  out["seconds_high"] = column(curve, [](const CurvePoint& p) { return p.timing.high_seconds; });
  out["seconds_worst"] = column(curve, [](const CurvePoint& p) { return p.timing.worst_seconds; });
  out["num_samples"] = column(curve, [](const CurvePoint& p) { return p.timing.num_samples; });
  out["num_outliers"] = column(curve, [](const CurvePoint& p) { return p.timing.num_outliers; });
  return out;
}

Json curve_json(const Curve& curve) {
  Json out{{"name", curve.name}, {"unit", curve.unit}, {"axes", curve.axes}};
  out["points"] = points_json(curve);
  if (!curve.fit) return out;
  out["fit"] = {{"latency_seconds", curve.fit->line.latency_seconds},
                {"bandwidth_bytes_per_second", curve.fit->line.bytes_per_second},
                {"r_squared", curve.fit->r_squared},
                {"median_residual", curve.fit->median_residual},
                {"worst_residual", curve.fit->worst_residual},
                {"residuals", curve.fit->residuals}};
  return out;
}

}  // namespace

Json to_json(const Cluster& cluster) {
  Json out;
  out["name"] = cluster.name;
  if (!cluster.description.empty()) out["description"] = cluster.description;
  out["device"] = cluster.device;
  out["kind"] = cluster.kind;
  out["memory_bytes"] = cluster.memory_bytes;
  out["memory_bytes_per_second"] = cluster.memory_bytes_per_second;
  if (cluster.fixed_task_seconds > 0) out["fixed_task_seconds"] = cluster.fixed_task_seconds;
  if (cluster.cores_per_node > 0) out["cores_per_node"] = cluster.cores_per_node;
  out["levels"] = Json::array();
  for (const Level& level : cluster.levels) out["levels"].push_back(level_json(level));
  out["compute"] = Json::object();
  for (const auto& [precision, compute] : cluster.compute)
    out["compute"][precision] = compute_json(compute);
  put_grid("element_wise_bytes_per_second", cluster.element_wise, &out);
  put_grid("copy_bytes_per_second", cluster.copy, &out);
  for (const auto& [name, value] : cluster.numbers) out["numbers"][name] = value;
  for (const Curve& curve : cluster.curves) out["curves"].push_back(curve_json(curve));
  for (const Source& source : cluster.sources) out["sources"][source.fact] = source.source;
  return out;
}

}  // namespace piper::cluster
