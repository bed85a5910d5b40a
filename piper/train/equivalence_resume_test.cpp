// A checkpoint of one mesh is what a run on another goes on from, with whatever either divides.
#include <doctest/doctest.h>
#include <piper/checkpoint/checkpoint.h>
#include <piper/checkpoint/checkpoint_reader.h>
#include <piper/checkpoint/checkpoint_state.h>
#include <testing/train/equivalence_mesh.h>
#include <tests/test_folder.h>

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace piper::train::testing {
namespace {

struct Steps {
  std::map<std::string, at::Tensor> values;  // of the whole model, behind the last step
  std::vector<double> losses;                // of each step
  int64_t num_states = 0;                    // elements of optimizer states, of all ranks together
};

// Steps `first` to `last` from the checkpoint in `from` (empty: from the initial weights), and a
// checkpoint behind step `save_at` in `to`.
Steps train_steps(const model::Model& model, const strategy::Strategy& s, int64_t first,
                  int64_t last, const std::filesystem::path& from, int64_t save_at,
                  const std::filesystem::path& to) {
  const schedule::StepGraph step = schedule::write_step(model, s);
  RunShared shared{model, s, step, {}, {}};
  shared.options.learning_rate = {
      .peak = 1e-2, .minimum = 1e-3, .warmup_steps = 3, .total_steps = kAllSteps};
  shared.options.timeout_seconds = 20;
  if (s.mesh.world() % 2 == 0) shared.topology = collective::even_nodes(s.mesh.world() / 2, 2);
  shared.batches = [&](int64_t number, int64_t dp, int64_t micro) {
    return batch(s, number, dp, micro);
  };
  checkpoint::CheckpointSave save(to,
                                  {.model = model.name,
                                   .fingerprint = "f",
                                   .mesh = s.mesh,
                                   .layers_per_stage = s.layers_per_stage},
                                  {.step = save_at});
  std::optional<checkpoint::CheckpointReader> reader;
  if (!from.empty()) reader.emplace(checkpoint::require_newest_complete(from));
  if (reader) reader->require_exactly(model);
  comm::LocalWorld world(s.mesh.world());
  executor::Cores cores(2);
  Steps steps;
  std::mutex mutex;
  comm::run_ranks(world, [&](comm::Transport& transport) {
    at::set_num_threads(1);
    RankTrainer trainer(shared, transport, cores);
    if (reader) reader->read(checkpoint::state_tensors(trainer.stage(), trainer.optimizer()));
    std::vector<double> losses;
    const auto write = [&] {
      trainer.gather_weights(uint64_t{1} << 50);
      const std::vector<nn::NamedTensor> written =
          checkpoint::written_tensors(trainer.stage(), trainer.optimizer(), s.mesh, trainer.rank());
      const std::lock_guard lock(mutex);
      save.write_shard(trainer.rank(), written);
    };
    if (save_at < first) write();
    for (int64_t number = first; number <= last; ++number) {
      losses.push_back(trainer.step(number).loss);
      if (number == save_at) write();
    }
    trainer.gather_weights((uint64_t{1} << 50) + (uint64_t{1} << 20));
    const std::lock_guard lock(mutex);
    for (const nn::NamedTensor& tensor : trainer.optimizer().state())
      steps.num_states += tensor.value.numel();
    for (const nn::NamedPiece& piece : trainer.stage().named_pieces())
      place(steps.values[piece.name], piece.value, piece.part);
    if (transport.rank() == Rank(0)) steps.losses = losses;
  });
  save.commit();
  return steps;
}

// Weights and optimizer states that one rank reads from a checkpoint.
std::map<std::string, at::Tensor> states_in(const model::Model& model,
                                            strategy::Precision precision,
                                            const std::filesystem::path& folder) {
  const strategy::Strategy s =
      strategy_for(model, {}, PipelineSchedule::k1F1B, Recompute::kNone, precision);
  const schedule::StepGraph step = schedule::write_step(model, s);
  const RunShared shared{model, s, step, {}, {}};
  comm::LocalWorld world(1);
  executor::Cores cores(1);
  std::map<std::string, at::Tensor> states;
  comm::run_ranks(world, [&](comm::Transport& transport) {
    RankTrainer trainer(shared, transport, cores);
    const std::vector<nn::NamedTensor> held =
        checkpoint::state_tensors(trainer.stage(), trainer.optimizer());
    checkpoint::CheckpointReader(checkpoint::require_newest_complete(folder)).read(held);
    for (const nn::NamedTensor& tensor : held) states[tensor.name] = tensor.value.clone();
  });
  return states;
}

}  // namespace

TEST_CASE("each optimizer state is in one place; checkpoints go from any division to any other") {
  // Run A: 4 steps. Run B: 2 steps on one mesh, saved, 2 more on another, with other divisions.
  const model::Model model = small_model();
  const auto train = [&](const strategy::Mesh& mesh, int64_t zero, int64_t first, int64_t last,
                         const std::filesystem::path& from, const std::filesystem::path& to) {
    strategy::Strategy s = strategy_for(model, mesh, PipelineSchedule::k1F1B, Recompute::kNone,
                                        strategy::Precision::kBf16);
    s.zero = zero;
    return train_steps(model, s, first, last, from, last, to);
  };
  const strategy::Mesh wide{.ep = 2, .dp = 4}, deep{.pp = 2, .dp = 2},
      shared{.ep = 4, .dp = 2, .tp = 2}, parts{.ep = 2, .dp = 4, .etp = 2};
  int64_t number = 0;  // of a pair of meshes
  for (const auto& [first, second] : {std::pair{wide, deep},
                                      {deep, wide},
                                      {shared, deep},
                                      {deep, shared},
                                      {parts, deep},
                                      {shared, parts}}) {
    ++number;
    for (const int64_t zero : {0, 1, 2, 3})
      for (const int64_t then : {0, 1, 2, 3}) {
        if (zero == 2 && then == 1) continue;  // as the other way round
        // In short a third of them; over the pairs of meshes together all.
        if (!piper::testing::full_counts() && (zero + 2 * then + number) % 3 != 0) continue;
        INFO(text({.mesh = first, .zero = zero}), " then ", text({.mesh = second, .zero = then}));
        const piper::testing::TestFolder half, whole, other;
        train(first, zero, 1, 2, {}, half.path());
        // Loaded elsewhere and saved at once it is the same checkpoint, tensor by tensor.
        train(second, then, 1, 0, half.path(), other.path());
        const Steps again = train(first, then, 3, 4, other.path(), whole.path());
        const piper::testing::TestFolder straight;
        const Steps expected = train(first, zero, 1, 4, {}, straight.path());
        for (const auto& [name, value] : expected.values)
          CHECK(at::equal(value, again.values.at(name)));
        if (zero > 0 && then > 0) CHECK(expected.num_states == again.num_states);
        if (zero == 0 && then > 0) CHECK(again.num_states < expected.num_states);
      }
  }
}

TEST_CASE("a random strategy goes on from the checkpoint of another") {
  const auto seed = full_counts() ? std::random_device{}() : 29u;
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  const std::vector<model::Model> models = models_of_random_runs();
  const int64_t count = repetitions({.usual = 4, .full = 200});
  double worst_loss = 0, worst_value = 0;
  for (int64_t i = 0; i < count; ++i) {
    const model::Model& model = models[random() % models.size()];
    const strategy::Capacity& capacity = kCapacities[random() % std::size(kCapacities)];
    const MeshRun first = random_run(random, model, capacity);
    const MeshRun second = random_run(random, model, capacity);
    INFO(model.name, " capacity ", capacity.factor, ": ", text(first), " then ", text(second));
    const piper::testing::TestFolder half, copy, end;
    const Steps stayed = train_steps(model, strategy_of(model, first), 1, 4, {}, 2, half.path());
    train_steps(model, strategy_of(model, second), 1, 0, half.path(), 0, copy.path());
    const Steps moved =
        train_steps(model, strategy_of(model, second), 3, 4, half.path(), 4, end.path());
    // What the other mesh has read and written again: every weight and both moments, bit by bit.
    const auto saved = states_in(model, strategy::Precision::kFp64, half.path());
    const auto read = states_in(model, strategy::Precision::kFp64, copy.path());
    REQUIRE(saved.size() == read.size());
    for (const auto& [name, value] : saved) CHECK(at::equal(value, read.at(name)));
    REQUIRE(moved.losses.size() == 2);
    for (const size_t step : {0, 1}) {
      const double difference = std::abs(moved.losses[step] - stayed.losses[step + 2]);
      worst_loss = std::max(worst_loss, difference);
      CHECK(difference < 1e-9);
    }
    const double difference = largest_difference(stayed.values, moved.values);
    worst_value = std::max(worst_value, difference);
    CHECK(difference < 1e-9);
  }
  MESSAGE("losses differ by at most ", worst_loss, ", weights by at most ", worst_value);
}

}  // namespace piper::train::testing
