// Experts whose weights travel as residuals (strategy/residual_code.h), against one rank that holds
// back in its own weights what others would not have been told.
#include <piper/strategy/residual_code.h>
#include <testing/train/equivalence_mesh.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace piper::train::testing {
namespace {

using strategy::Reduction;

constexpr int64_t kSteps = 6, kCompression = 6;

struct ResidualsCase {
  strategy::Mesh mesh;
  int64_t zero = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  Reduction reduction = Reduction::kDirect;
  bool sequence_parallel = true;
};

strategy::Strategy residuals_strategy(const model::Model& model, const ResidualsCase& c) {
  strategy::Strategy s =
      testing::strategy_of(model, MeshRun{.mesh = c.mesh,
                                          .schedule = c.schedule,
                                          .zero = c.zero,
                                          .sequence_parallel = c.sequence_parallel});
  s.reduction = c.reduction;
  s.expert_compression = kCompression;
  return s;
}

// Without decay, so that an update does not depend on the weights that it changes.
void without_decay(RunShared& shared) { shared.options.adamw.weight_decay = 0; }

// The elements of one rank's experts that are farthest from what was told: by sorting, block by
// block of every share.
void tell(std::vector<double>& told, const std::vector<double>& exact,
          const strategy::ResidualCode& code) {
  for (size_t first = 0; first < told.size(); first += static_cast<size_t>(code.block)) {
    std::vector<size_t> at(static_cast<size_t>(code.block));
    std::iota(at.begin(), at.end(), first);
    std::ranges::sort(at, std::greater<>(), [&](size_t i) { return std::abs(exact[i] - told[i]); });
    for (int64_t i = 0; i < code.kept; ++i)
      told[at[static_cast<size_t>(i)]] = exact[at[static_cast<size_t>(i)]];
  }
}

// One rank, whose weights are what the ranks of `s` were told. The buffer of a layer is
// [E, 2F, D], then [E, D, F]; a rank of an expert group has a range of both.
class HoldsBack {
 public:
  HoldsBack(const model::Model& model, const strategy::Strategy& s) : model_(model), s_(s) {}

  void before_step(nn::Stage& stage) {
    // Those of modules of multi-token prediction among them.
    for (int32_t layer = 0; layer < std::ssize(model_.layers); ++layer) {
      if (!model_.layers[static_cast<size_t>(layer)].feed_forward.is_moe()) continue;
      const at::Tensor weights = stage.weights(layer, strategy::Axis::kExpertData);
      const auto [found, is_first] = layers_.try_emplace(layer);
      auto& [exact, told] = found->second;
      if (is_first) {
        exact = told = weights.clone();
        continue;  // all know the first ones
      }
      exact = exact + (weights - told);
      tell_all(layer, exact, told);
      weights.copy_(told);
    }
  }

 private:
  void tell_all(int32_t layer, const at::Tensor& exact, const at::Tensor& told) const {
    const model::FeedForward& f = model_.layers[static_cast<size_t>(layer)].feed_forward;
    const int64_t up = f.num_experts * 2 * f.ffn * model_.hidden, ep = s_.mesh.ep;
    const strategy::ResidualCode code =
        strategy::residual_code(s_, told.numel() / ep / s_.mesh.etp, sizeof(double));
    REQUIRE(code.block > 0);
    REQUIRE(s_.mesh.etp == 1);
    for (int64_t i = 0; i < ep; ++i) {
      const auto of_rank = [&](const at::Tensor& of) {
        const int64_t down = of.numel() - up;
        return std::vector<at::Tensor>{of.narrow(0, i * up / ep, up / ep),
                                       of.narrow(0, up + i * down / ep, down / ep)};
      };
      const at::Tensor all_exact = at::cat(of_rank(exact)), all_told = at::cat(of_rank(told));
      std::vector<double> values(all_told.const_data_ptr<double>(),
                                 all_told.const_data_ptr<double>() + all_told.numel());
      tell(values,
           {all_exact.const_data_ptr<double>(),
            all_exact.const_data_ptr<double>() + all_exact.numel()},
           code);
      const at::Tensor now = at::tensor(at::ArrayRef<double>(values), at::kDouble);
      int64_t first = 0;
      for (const at::Tensor& part : of_rank(told)) {
        part.copy_(now.narrow(0, first, part.numel()));
        first += part.numel();
      }
    }
  }

  const model::Model& model_;
  const strategy::Strategy& s_;
  std::map<int32_t, std::pair<at::Tensor, at::Tensor>> layers_;  // exact, told
};

Trained of_one_rank(const model::Model& model, const strategy::Strategy& s) {
  HoldsBack holds(model, s);
  return run_training(model, testing::strategy_of(model, MeshRun{}), kSteps, {}, 0.3,
                      collective::apart(1), without_decay,
                      [&](RankTrainer& trainer, int64_t) { holds.before_step(trainer.stage()); });
}

}  // namespace

TEST_CASE("experts that travel as residuals train as one rank that holds the rest back") {
  for (const auto& [model, c] : {
           std::pair{small_model(), ResidualsCase{{.dp = 2}}},
           std::pair{small_model(), ResidualsCase{{.ep = 2, .dp = 4}}},
           std::pair{small_model(), ResidualsCase{{.ep = 2, .dp = 4}, 2}},
           std::pair{
               small_model(),
               ResidualsCase{{.dp = 4}, 1, PipelineSchedule::k1F1B, Reduction::kHierarchical}},
           std::pair{deepseek_like(),
                     ResidualsCase{{.pp = 2, .ep = 2, .dp = 4}, 1, PipelineSchedule::kZbH1}},
           std::pair{small_model(),
                     ResidualsCase{
                         {.pp = 2, .ep = 2, .dp = 4, .vpp = 2}, 2, PipelineSchedule::kDualPipeV}},
           std::pair{qwen2_like(), ResidualsCase{{.ep = 2, .dp = 2, .tp = 2}}},
           std::pair{model::with_mtp(small_model(), 1), ResidualsCase{{.pp = 2, .ep = 2, .dp = 4}}},
           std::pair{small_model(), ResidualsCase{{.ep = 2, .dp = 2, .cp = 2}}},
       }) {
    const strategy::Strategy s = residuals_strategy(model, c);
    INFO(model.name, " pp ", c.mesh.pp, " ep ", c.mesh.ep, " dp ", c.mesh.dp, " tp ", c.mesh.tp,
         " cp ", c.mesh.cp, " zero ", c.zero);
    const Trained one = of_one_rank(model, s);
    const Trained many =
        run_training(model, s, kSteps, {}, 0.3,
                     c.mesh.world() % 2 == 0 ? collective::even_nodes(c.mesh.world() / 2, 2)
                                             : collective::apart(c.mesh.world()),
                     without_decay);
    for (size_t i = 0; i < one.losses.size(); ++i) {
      CHECK(std::abs(one.losses[i] - many.losses[i]) < 1e-9);
      CHECK(std::abs(one.norms[i] - many.norms[i]) < 1e-9);
    }
    // It is not the training of experts that are sent whole.
    strategy::Strategy whole = s;
    whole.expert_compression = 1;
    const Trained plain = run_training(model, whole, kSteps, {}, 0.3,
                                       collective::apart(c.mesh.world()), without_decay);
    CHECK(std::abs(plain.losses.back() - many.losses.back()) > 1e-6);
    CHECK(plain.losses[0] == doctest::Approx(many.losses[0]).epsilon(1e-12));
  }
}

TEST_CASE("what is sent of experts does not depend on the schedule") {
  const model::Model model = small_model();
  const auto of = [&](PipelineSchedule schedule, strategy::Precision precision) {
    strategy::Strategy s = residuals_strategy(
        model, ResidualsCase{.mesh = {.pp = 2, .ep = 2, .dp = 4}, .schedule = schedule});
    s.precision = precision;
    return run_training(model, s, kSteps);
  };
  for (const strategy::Precision precision :
       {strategy::Precision::kFp32, strategy::Precision::kBf16}) {
    const Trained first = of(PipelineSchedule::k1F1B, precision);
    for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::kZbH1}) {
      const Trained other = of(schedule, precision);
      CHECK(num_differing(first, other) == 0);
      CHECK(first.losses == other.losses);
    }
  }
}

TEST_CASE("neither an evaluation nor a comparison of replicas changes what was told") {
  const model::Model model = small_model();
  const strategy::Strategy s = residuals_strategy(model, ResidualsCase{.mesh = {.ep = 2, .dp = 4}});
  const schedule::StepGraph evaluation = schedule::write_evaluation(model, s);
  const Trained plain = run_training(model, s, kSteps);
  const Trained watched = run_training(
      model, s, kSteps, {}, 0.3, collective::apart(1),
      [&](RunShared& shared) { shared.evaluation = &evaluation; },
      [&](RankTrainer& trainer, int64_t number) {
        const BatchSource batches = [&](int64_t of, int64_t dp, int64_t micro) {
          return batch(s, of, dp, micro);
        };
        trainer.evaluate(1000 + number, batches, number);
        if (number > 1) trainer.gather_weights((uint64_t{1} << 40) * (2 + number), /*tells=*/false);
      });
  CHECK(plain.losses == watched.losses);
  CHECK(num_differing(plain, watched) == 0);
  // A checkpoint does: all are told all of them.
  const Trained saved = run_training(model, s, kSteps, {}, 0.3, collective::apart(1), {},
                                     [&](RankTrainer& trainer, int64_t number) {
                                       if (number == 4) trainer.gather_weights(uint64_t{1} << 40);
                                     });
  CHECK(std::equal(saved.losses.begin(), saved.losses.begin() + 3, plain.losses.begin()));
  CHECK(saved.losses.back() != plain.losses.back());
}

}  // namespace piper::train::testing
