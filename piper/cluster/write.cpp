// to_json: what parse_cluster reads. Facts that are not stated are left out.
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
  for (const Source& source : cluster.sources) out["sources"][source.fact] = source.source;
  return out;
}

}  // namespace piper::cluster
