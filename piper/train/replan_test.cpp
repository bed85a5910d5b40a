#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/files/output.h>
#include <piper/report/run_files.h>
#include <piper/train/run.h>
#include <testing/cost/example_model.h>
#include <tests/test_folder.h>

#include <cmath>

namespace piper::train {
namespace {

constexpr int64_t kSteps = 200;

// Two stages and one micro-batch: each waits for the other half of the time, so that nearly
// everything else is faster, on every machine.
RunRequest poor_choice(const std::filesystem::path& folder, plan::Replan kind) {
  RunRequest r;
  r.model = cost::example::mixture(4);
  r.model.hidden = 128;  // steps that are long beside what a change costs
  r.model.vocabulary = 256;
  r.strategy = cost::example::strategy(r.model, 2, 1, 1, 1);
  r.strategy.micro_batch_sequences = r.strategy.global_batch_sequences = 8;
  r.strategy.sequence = 64;
  r.cluster = cost::example::nodes();
  r.cluster.kind = "cpu";
  r.cluster.compute["fp32"].gemm_efficiency = 0.01;
  r.cluster.memory_bytes_per_second = 1e9;
  r.corpus = data::Corpus(data::Text(std::string(4000, 'x') + std::string(3000, 'y'), "text"));
  r.folder = folder;
  r.num_steps = kSteps;
  r.options.learning_rate = {.peak = 1e-3, .minimum = 1e-4, .total_steps = kSteps};
  r.replan = {.kind = kind};
  return r;
}

}  // namespace

TEST_CASE("a run that may change its strategy does, and ends where one that stayed does") {
  const piper::testing::TestFolder folder;
  RunRequest changing = poor_choice(folder.path() / "auto", plan::Replan::kAuto);
  const RunResult changed = run_training(changing);
  const RunResult stayed = run_training(poor_choice(folder.path() / "off", plan::Replan::kOff));

  REQUIRE(!changed.replanned.empty());
  CHECK(stayed.replanned.empty());
  CHECK_FALSE(changed.stopped);
  const strategy::Strategy ended = strategy::parse_strategy(
      read_json_file(changing.folder / report::kStrategyFile), "strategy.json");
  CHECK(strategy::to_json(ended) == strategy::to_json(changed.replanned.back().proposal.strategy));
  CHECK(strategy::to_json(ended) != strategy::to_json(changing.strategy));

  REQUIRE(changed.metrics.size() == kSteps);
  for (size_t i = 0; i < changed.metrics.size(); ++i) {
    CHECK(changed.metrics[i].step == static_cast<int64_t>(i) + 1);
    CHECK(std::abs(changed.metrics[i]["loss"].value() - stayed.metrics[i]["loss"].value()) <
          1e-5 * std::max(1.0, stayed.metrics[i]["loss"].value()));
  }
}

TEST_CASE("a run that is to ask says what would be faster, leaves it in its folder, and stays") {
  const piper::testing::TestFolder folder;
  RunRequest r = poor_choice(folder.path() / "ask", plan::Replan::kAsk);
  std::vector<std::string> said;
  r.say = [&](const std::string& line) { said.push_back(line); };
  const RunResult result = run_training(r);
  REQUIRE(!result.replanned.empty());
  const std::filesystem::path file = r.folder / report::kProposedStrategyFile;
  const auto is_in = [](const std::filesystem::path& path, const strategy::Strategy& strategy) {
    return files::holds(path, files::json_file_text(strategy::to_json(strategy)));
  };
  CHECK(is_in(file, result.replanned.back().proposal.strategy));
  CHECK(said.back().ends_with("to go on with it: --resume --strategy " + file.string()));
  CHECK(is_in(r.folder / report::kStrategyFile, r.strategy));
}

TEST_CASE("a cluster without figures, or one that is described, leaves nothing to compare with") {
  const piper::testing::TestFolder folder;
  RunRequest r = poor_choice(folder.path() / "run", plan::Replan::kAsk);
  r.cluster.kind = "gpu";
  CHECK_THROWS_WITH_AS(run_training(r),
                       "--replan compares by this Piper's own costs, which are known of a machine "
                       "that `piper profile` measured, and nodes is described; allowed here: off",
                       InvalidInput);
  r.cluster.compute.erase("fp32");
  CHECK_THROWS_WITH_AS(run_training(r),
                       "--replan has nothing to compare with (cluster nodes has no compute figures "
                       "for 'fp32'; allowed: bf16, fp64); allowed here: off",
                       InvalidInput);
}

}  // namespace piper::train
