// ZeRO: with optimizer states divided among replicas a run is that of undivided states, bit by bit.
#include <fmt/format.h>
#include <piper/strategy/divided_states.h>
#include <testing/train/equivalence_run.h>

namespace piper::train::testing {
namespace {

using strategy::Precision;
using strategy::Reduction;

struct StatesCase {
  strategy::Mesh mesh;
  Precision precision = Precision::kFp32;
  Reduction reduction = Reduction::kDirect;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
};

collective::Topology nodes_of_two(int64_t num_ranks) {
  collective::Topology nodes = collective::apart(num_ranks);
  for (size_t r = 0; r < nodes.unit.front().size(); ++r)
    nodes.unit.front()[r] = static_cast<int32_t>(r / 2);
  return nodes;
}

strategy::Strategy strategy_of(const model::Model& model, const StatesCase& c, int64_t zero) {
  strategy::Strategy s = strategy_for(model, c.mesh, c.schedule, Recompute::kNone, c.precision);
  s.reduction = c.reduction;
  s.zero = zero;
  return s;
}

Trained run(const model::Model& model, const StatesCase& c, int64_t zero) {
  return run_training(model, strategy_of(model, c, zero), 4, {}, 0.3, nodes_of_two(c.mesh.world()));
}

std::string text(const StatesCase& c) {
  return fmt::format("pp {} ep {} dp {} tp {} etp {} {} {} {}", c.mesh.pp, c.mesh.ep, c.mesh.dp,
                     c.mesh.tp, c.mesh.etp, strategy::name(c.schedule), strategy::name(c.precision),
                     strategy::name(c.reduction));
}

}  // namespace

TEST_CASE("with divided optimizer states every weight, loss and norm is the same to the bit") {
  const model::Model plain = small_model();
  model::Model tied = plain;
  tied.tied_embeddings = true;
  const model::Model with_modules = model::with_mtp(plain, 2);
  for (const auto& [model, c] : {
           std::pair{plain, StatesCase{{.dp = 2}}},
           std::pair{plain, StatesCase{{.ep = 2, .dp = 4}, Precision::kBf16}},
           std::pair{plain, StatesCase{{.dp = 4}, Precision::kFp64, Reduction::kHierarchical}},
           std::pair{plain, StatesCase{{.pp = 2, .ep = 2, .dp = 4},
                                       Precision::kFp32,
                                       Reduction::kHierarchical,
                                       PipelineSchedule::kGPipe}},
           std::pair{tied, StatesCase{{.pp = 2, .dp = 2}, Precision::kBf16}},
           std::pair{tied, StatesCase{{.ep = 2, .dp = 2}}},
           std::pair{with_modules, StatesCase{{.pp = 2, .ep = 2, .dp = 2}}},
           // Several chunks a rank, backwards in two parts, both ends on one rank.
           std::pair{plain, StatesCase{{.pp = 2, .ep = 2, .dp = 2, .vpp = 2},
                                       Precision::kFp32,
                                       Reduction::kDirect,
                                       PipelineSchedule::kInterleaved}},
           std::pair{plain, StatesCase{{.pp = 2, .dp = 2},
                                       Precision::kBf16,
                                       Reduction::kDirect,
                                       PipelineSchedule::kZbH1}},
           std::pair{with_modules, StatesCase{{.pp = 2, .ep = 2, .dp = 4, .vpp = 2},
                                              Precision::kFp32,
                                              Reduction::kHierarchical,
                                              PipelineSchedule::kZbV}},
           std::pair{tied, StatesCase{{.pp = 2, .dp = 2, .vpp = 2},
                                      Precision::kFp32,
                                      Reduction::kDirect,
                                      PipelineSchedule::kDualPipeV}},
           // Shared matrices: sums over the stage of what is whole, over the data group of parts.
           std::pair{plain, StatesCase{{.ep = 4, .dp = 2, .tp = 2}, Precision::kBf16}},
           std::pair{deepseek_like(), StatesCase{{.pp = 2, .ep = 2, .dp = 2, .tp = 2},
                                                 Precision::kFp32,
                                                 Reduction::kHierarchical}},
           std::pair{plain, StatesCase{{.ep = 2, .dp = 4, .etp = 2, .tp = 2}, Precision::kBf16}},
           std::pair{tied, StatesCase{{.pp = 2, .dp = 2, .vpp = 2, .tp = 2},
                                      Precision::kFp32,
                                      Reduction::kDirect,
                                      PipelineSchedule::kZbV}},
       }) {
    INFO(text(c));
    const Trained whole = run(model, c, 0), divided = run(model, c, 1);
    CHECK(num_differing(whole, divided) == 0);
    CHECK(whole.losses == divided.losses);
    CHECK(whole.norms == divided.norms);
    CHECK(whole.mtp_losses == divided.mtp_losses);
    CHECK(whole.losses.back() != whole.losses.front());
  }
}

namespace {

// Every mesh axis beside it, every schedule, recomputation, both ends' tables in one; modules of
// multi-token prediction, which add to the embedding, to the head and to the norm before them.
std::vector<std::pair<model::Model, strategy::Strategy>> with_divided_gradients() {
  using Schedule = PipelineSchedule;
  const model::Model plain = small_model();
  model::Model tied = plain;
  tied.tied_embeddings = true;
  std::vector<std::pair<model::Model, strategy::Strategy>> cases;
  const auto add = [&](const model::Model& model, strategy::Mesh mesh,
                       Schedule schedule = Schedule::k1F1B,
                       Reduction reduction = Reduction::kDirect) {
    cases.emplace_back(
        model, strategy_of(model, {mesh, Precision::kFp64, reduction, schedule}, /*zero=*/2));
  };
  add(plain, {.dp = 2});
  add(tied, {.dp = 2});
  add(plain, {.ep = 2, .dp = 4}, Schedule::k1F1B, Reduction::kHierarchical);
  add(plain, {.pp = 2, .ep = 2, .dp = 4}, Schedule::kGPipe);
  add(plain, {.pp = 2, .ep = 2, .dp = 2}, Schedule::k1F1B);
  add(plain, {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, Schedule::kInterleaved);
  add(plain, {.pp = 2, .dp = 2}, Schedule::kZbH1);
  add(tied, {.pp = 2, .dp = 2});  // both ends keep whole gradients of the table
  add(tied, {.pp = 2, .ep = 2, .dp = 4}, Schedule::kGPipe, Reduction::kHierarchical);
  add(tied, {.pp = 2, .dp = 2, .vpp = 2, .tp = 2}, Schedule::kZbV);
  add(tied, {.pp = 2, .ep = 2, .dp = 4, .vpp = 2}, Schedule::kDualPipeV);
  add(plain, {.ep = 4, .dp = 2, .tp = 2});
  add(deepseek_like(), {.pp = 2, .ep = 2, .dp = 2, .tp = 2});
  add(plain, {.ep = 2, .dp = 4, .etp = 2, .tp = 2});
  cases.back().second.sequence_parallel = false;
  cases.back().second.micro_batch_sequences = 2;
  cases.back().second.num_micro_batches /= 2;
  cases.push_back(cases[2]);
  cases.back().second.recompute = Recompute::kFull;
  const model::Model modules = model::with_mtp(plain, 2), tied_modules = model::with_mtp(tied, 2);
  add(modules, {.dp = 2});
  add(tied_modules, {.ep = 2, .dp = 4}, Schedule::k1F1B, Reduction::kHierarchical);
  add(modules, {.pp = 2, .ep = 2, .dp = 4}, Schedule::kGPipe);
  add(tied_modules, {.pp = 2, .dp = 2});
  add(modules, {.pp = 2, .dp = 2}, Schedule::kZbH1);
  add(modules, {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, Schedule::kZbV);
  add(tied_modules, {.pp = 2, .dp = 2, .vpp = 2}, Schedule::kDualPipeV);
  // Both of a pair compute with the head, and with the modules in front of it.
  add(modules, {.ep = 2, .dp = 4}, Schedule::k1F1BPairs);
  add(tied_modules, {.pp = 2, .ep = 2, .dp = 2}, Schedule::k1F1BPairs);
  add(modules, {.pp = 2, .ep = 2, .dp = 2, .vpp = 2}, Schedule::kInterleavedPairs);
  add(model::with_mtp(deepseek_like(), 2), {.ep = 2, .dp = 2, .tp = 2});
  cases.back().second.recompute = Recompute::kFull;
  return cases;
}

}  // namespace

TEST_CASE(
    "with divided gradients a step is that of divided states, to the bit with one micro-batch") {
  for (const auto& [model, several] : with_divided_gradients())
    for (const bool is_one : {false, true}) {
      strategy::Strategy s = several;
      if (is_one) {
        s.micro_batch_sequences *= s.num_micro_batches;
        s.num_micro_batches = 1;
      }
      // Schedules in two directions need several.
      if (!strategy::contradictions(s, model).empty()) continue;
      INFO("pp ", s.mesh.pp, " vpp ", s.mesh.vpp, " ep ", s.mesh.ep, " dp ", s.mesh.dp, " tp ",
           s.mesh.tp, " etp ", s.mesh.etp, " ", strategy::name(s.schedule), " of ",
           s.num_micro_batches);
      const auto with = [&](int64_t zero) {
        s.zero = zero;
        return run_training(model, s, 4, {}, 0.3, nodes_of_two(s.mesh.world()));
      };
      const Trained states = with(1), gradients = with(2);
      CHECK(largest_difference(states.values, gradients.values) <= (is_one ? 0 : 1e-9));
      CHECK(states.losses.back() != states.losses.front());
      CHECK(gradients.norms.back() == doctest::Approx(states.norms.back()).epsilon(1e-9));
      if (!strategy::pairs_share_layers(s.schedule)) {
        const Trained weights = with(3);
        CHECK(largest_difference(gradients.values, weights.values) == 0);
        CHECK(gradients.losses == weights.losses);
        CHECK(gradients.norms == weights.norms);
      }
      // All memory is given back; experts that nobody else holds keep theirs, and so do ends that
      // sum their tables.
      const bool sums_ends = strategy::sums_table_of_ends(s, model, -1);
      for (const auto& [name, gradient] : gradients.gradients)
        CHECK((name.find(".experts.") != std::string::npos ||
               (sums_ends && name.find(".layers.") == std::string::npos)));
      if (s.mesh.edp() > 1 && !sums_ends) CHECK(gradients.gradients.empty());
    }
}

}  // namespace piper::train::testing
