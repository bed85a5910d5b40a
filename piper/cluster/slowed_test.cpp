#include <doctest/doctest.h>
#include <piper/base/json.h>
#include <piper/cluster/slowed.h>

namespace piper::cluster {
namespace {

Cluster described() {
  Cluster c = load_cluster("dgx-h100");
  c.compute["fp32"].gemm = {.axes = {"m", "n", "k"}, .points = {{1}, {1}, {1}}, .rate = {8e12}};
  c.element_wise = {.axes = {"bytes"}, .points = {{1}}, .rate = {6e9}};
  c.numbers = {{"all_to_all_bytes_per_second", 4e9}, {"all_to_all_latency_seconds", 3e-6},
               {"ring_step_seconds", 5e-6},          {"node_ring_step_seconds", 1e-6},
               {"optimizer_bytes_per_second", 2e9},  {"host_copy_bytes_per_second", 1e9},
               {"task_scatter_ratio", 0.1}};
  return c;
}

}  // namespace

TEST_CASE("a machine that computes half as fast and whose outer links have a tenth") {
  const Cluster as_it_was = described(), slow = slowed(as_it_was, 2, {1, 10});
  CHECK(slow.compute.at("fp32").gemm.rate[0] == 4e12);
  CHECK(slow.compute.at("bf16").peak_flops_per_second ==
        as_it_was.compute.at("bf16").peak_flops_per_second);
  CHECK(slow.element_wise.rate[0] == 3e9);
  CHECK(slow.memory_bytes_per_second == as_it_was.memory_bytes_per_second / 2);
  CHECK(slow.fixed_task_seconds == as_it_was.fixed_task_seconds * 2);
  CHECK(slow.levels[0].link.bytes_per_second == as_it_was.levels[0].link.bytes_per_second);
  CHECK(slow.levels[1].link.bytes_per_second == as_it_was.levels[1].link.bytes_per_second / 10);
  CHECK(slow.levels[1].link.latency_seconds == as_it_was.levels[1].link.latency_seconds * 10);
  CHECK(slow.levels[1].nic_bytes_per_second == as_it_was.levels[1].nic_bytes_per_second / 10);
  CHECK(slow.numbers.at("all_to_all_bytes_per_second") == 4e9);
  CHECK(slow.numbers.at("node_ring_step_seconds") == 1e-6);
  CHECK(slow.numbers.at("ring_step_seconds") == 5e-6 * 10);
  CHECK(slow.numbers.at("optimizer_bytes_per_second") == 1e9);
  CHECK(slow.numbers.at("host_copy_bytes_per_second") == 1e9);
  CHECK(slow.numbers.at("task_scatter_ratio") == 0.1);

  const Cluster slow_inside = slowed(as_it_was, 1, {4});
  CHECK(slow_inside.numbers.at("all_to_all_bytes_per_second") == 1e9);
  CHECK(slow_inside.numbers.at("all_to_all_latency_seconds") == 12e-6);
  CHECK(slow_inside.levels[1].link.latency_seconds == as_it_was.levels[1].link.latency_seconds);
  CHECK(slow_inside.compute.at("fp32").gemm.rate[0] == 8e12);
}

TEST_CASE("nothing slower is the same description") {
  CHECK(to_json(slowed(described(), 1, {})) == to_json(described()));
}

}  // namespace piper::cluster
