#include <doctest/doctest.h>
#include <piper/model/import.h>
#include <piper/placement/nodes_by_step.h>
#include <piper/placement/placement_cases.h>

#include <numeric>
#include <random>

namespace piper::placement {
namespace {

strategy::Strategy experts_of_eight(const model::Model& model, int64_t pp, int64_t dp) {
  strategy::Strategy s;
  s.mesh = {.pp = pp, .ep = 8, .dp = dp};
  s.layers_per_stage = strategy::even_split(model.num_layers(), pp);
  s.sequence = 1024;
  s.micro_batch_sequences = 1;
  s.num_micro_batches = 1;
  s.global_batch_sequences = dp;
  return s;
}

constexpr int kShorter = 22;  // of 40 draws the one where the least busy links have a longer step

}  // namespace

TEST_CASE("nodes are chosen by the step on them, never a longer one than busy links would give") {
  const model::Model model = model::load_model("olmoe-1b-7b");
  const ExposedSeconds exposed{.exchange = 1};  // gradients hide
  std::mt19937 random(20261123);
  for (int i = 0; i <= kShorter; ++i) {
    std::vector<std::vector<int>> paths;
    const int64_t num_free = 7 + static_cast<int64_t>(random() % 5);
    for (int64_t n = 0; n < num_free; ++n) {
      const int on = static_cast<int>(random() % 5);
      paths.push_back({on, on / 2});
    }
    const cluster::Allocation free =
        example_places::allocation(paths, std::vector<int64_t>(paths.size(), 4));
    const strategy::Strategy s =
        i % 2 == 0 ? experts_of_eight(model, 1, 24) : experts_of_eight(model, 3, 8);
    if (i % 11 != 0) continue;  // two seconds each
    CAPTURE(i);
    const StepChoice chosen = choose_nodes_by_step(free, 6, model, s, exposed, 10);
    CHECK(chosen.step_seconds <= chosen.by_bytes_seconds);
    CHECK(chosen.step_seconds <= chosen.first_seconds);
    CHECK(chosen.choice.nodes.size() == 6);
    CHECK(chosen.choice.num_units == units_of(free, chosen.choice.nodes));
    if (i == kShorter) CHECK(chosen.step_seconds < 0.98 * chosen.by_bytes_seconds);
  }
}

}  // namespace piper::placement
