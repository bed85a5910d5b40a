#include <doctest/doctest.h>
#include <piper/model/import.h>
#include <piper/stack/outside.h>

#include <algorithm>

namespace piper::stack {
namespace {

std::vector<cluster::Outside> asked(const cluster::Cluster& cluster, int64_t sequence) {
  const model::Model model = model::load_model("deepseek-v2-lite");
  strategy::Strategy s{.mesh = {.ep = 8, .dp = 8},
                       .precision = strategy::Precision::kBf16,
                       .sequence = sequence,
                       .global_batch_sequences = 8,
                       .micro_batch_sequences = 1,
                       .num_micro_batches = 1};
  s.layers_per_stage = {model.num_layers()};
  return outside_measured(model, cluster, load_stack("piper"), s);
}

bool has(const std::vector<cluster::Outside>& outside, const std::string& axis) {
  return std::ranges::any_of(outside, [&](const cluster::Outside& o) { return o.axis == axis; });
}

}  // namespace

TEST_CASE("a sequence beyond what attention was measured with is said, with its range") {
  const cluster::Cluster h100 = cluster::load_cluster("dgx-h100");
  CHECK_FALSE(has(asked(h100, 4096), "sequence"));
  const auto outside = asked(h100, 262'144);
  REQUIRE(has(outside, "sequence"));
  for (const cluster::Outside& o : outside)
    if (o.axis == "sequence") {
      CHECK(o.asked_high == 262'144);
      CHECK(o.measured_high < o.asked_high);
    }
}

TEST_CASE("where nothing was measured nothing is outside of it") {
  cluster::Cluster bare = cluster::load_cluster("dgx-h100");
  for (auto& [precision, compute] : bare.compute)
    compute.gemm = compute.attention = compute.attention_backward = {};
  CHECK(asked(bare, 262'144).empty());
}

}  // namespace piper::stack
