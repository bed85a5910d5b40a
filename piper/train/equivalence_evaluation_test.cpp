// Forwards alone (schedule::write_evaluation()) give the losses that a step has, on every mesh.
#include <testing/train/equivalence_mesh.h>

#include <map>
#include <mutex>

namespace piper::train::testing {
namespace {

// Before every step the loss of its batch is asked for, by forwards alone.
void check_evaluation(const model::Model& model, const MeshRun& run,
                      strategy::Offload offload = strategy::Offload::kNone) {
  INFO(model.name, ": ", text(run));
  strategy::Strategy s = strategy_of(model, run);
  s.offload = offload;
  const schedule::StepGraph evaluation = schedule::write_evaluation(model, s);
  for (const std::string& problem : graph::validate(evaluation.graph)) FAIL(problem);
  REQUIRE(graph::find_deadlock(evaluation.graph) == "");
  const collective::Topology nodes = s.mesh.world() % 2 == 0
                                         ? collective::even_nodes(s.mesh.world() / 2, 2)
                                         : collective::apart(s.mesh.world());
  const Trained plain = run_training(model, s, 3, {}, 0.3, nodes);
  std::mutex mutex;
  std::map<int64_t, std::vector<double>> found;  // by step: what every rank was told
  const Trained asked = run_training(
      model, s, 3, {}, 0.3, nodes, [&](RunShared& shared) { shared.evaluation = &evaluation; },
      [&](RankTrainer& trainer, int64_t number) {
        const BatchSource batches = [&](int64_t of, int64_t dp, int64_t micro) {
          return batch(s, of, dp, micro);
        };
        const LossSum sum = trainer.evaluate(1000 + number, batches, number);
        const std::scoped_lock lock(mutex);
        found[number].push_back(sum.loss / sum.target_tokens);
      });
  for (size_t i = 0; i < asked.losses.size(); ++i) {
    const std::vector<double>& told = found.at(static_cast<int64_t>(i) + 1);
    CHECK(std::ssize(told) == s.mesh.world());
    for (const double loss : told) CHECK(std::abs(loss - asked.losses[i]) < 1e-12);
  }
  CHECK(plain.losses == asked.losses);
  CHECK(largest_difference(plain.values, asked.values) == 0);
}

}  // namespace

TEST_CASE("an evaluation is the loss of the step that follows, and changes nothing of it") {
  using enum PipelineSchedule;
  check_evaluation(model::with_mtp(tied(small_model()), 1),
                   {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, .schedule = kZbV, .zero = 3});
  check_evaluation(
      deepseek_like(),
      {.mesh = {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, .schedule = kDualPipeV, .redundant = 2});
  check_evaluation(
      small_model(),
      {.mesh = {.ep = 4, .dp = 4}, .all_to_all = strategy::AllToAll::kHaloDedup, .zero = 1});
  check_evaluation(small_model(), {.mesh = {.pp = 2, .ep = 2, .dp = 2}, .zero = 2},
                   strategy::Offload::kOptimizerAndActivations);
  std::mt19937 random(full_counts() ? std::random_device{}() : 31u);
  const std::vector<model::Model> models = models_of_random_runs();
  for (int i = 0; i < (full_counts() ? 100 : 8); ++i) {
    const model::Model& model = models[random() % models.size()];
    check_evaluation(model, random_run(random, model, kCapacities[random() % 3]));
  }
}

}  // namespace piper::train::testing
