// Whole runs that rebalance, are saved, stopped and resumed; and what is refused.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/checkpoint/checkpoint_folder.h>
#include <piper/cost/expert_price.h>
#include <piper/model/import.h>
#include <piper/train/rebalancer.h>
#include <piper/train/run.h>
#include <testing/cost/example_model.h>
#include <tests/test_folder.h>

#include <functional>
#include <string>

namespace piper::train {
namespace {

constexpr const char* kConfig =
    R"({"model_type": "mixtral", "hidden_size": 32, "intermediate_size": 48,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
  "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 64})";

RunRequest request(const piper::testing::TestFolder& folder, const strategy::Mesh& mesh,
                   const char* policy) {
  RunRequest r;
  r.model = model::load_model(folder.write("config.json", kConfig).string());
  r.strategy = cost::example::strategy(r.model, mesh.pp, mesh.ep, mesh.dp, 2);
  r.cluster = cost::example::nodes();
  std::string text;
  while (text.size() < 4000) text += "the quick brown fox jumps over the lazy dog; ";
  r.corpus = data::Corpus(data::Text(text, "text"));
  r.folder = folder.path() / policy;
  r.num_steps = 8;
  r.options.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 0, .total_steps = 8};
  r.options.timeout_seconds = 30;
  r.options.clip_norm = 0;
  r.deviation_bound = 0;
  r.rebalance = balance::parse_rebalance(policy, "policy");
  r.rebalance.every = 2;
  return r;
}

std::vector<double> losses(const RunResult& result) {
  std::vector<double> all;
  for (const report::StepMetrics& metrics : result.metrics) all.push_back(metrics["loss"].value());
  return all;
}

int64_t migrated(const RunResult& result) {
  int64_t sum = 0;
  for (const report::StepMetrics& metrics : result.metrics)
    sum += static_cast<int64_t>(metrics["migrated_experts"].value_or(0));
  return sum;
}

std::string failure(const std::function<void()>& f) {
  try {
    f();
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a run that rebalances learns the same, to the bit, and says what moved") {
  const piper::testing::TestFolder folder;
  const strategy::Mesh mesh{.pp = 1, .ep = 4, .dp = 4};
  const RunResult still = run_training(request(folder, mesh, "off"));
  CHECK_FALSE(still.metrics.front()["migrated_experts"]);
  for (const char* policy : {"threshold:1.01", "price", "random:0.5"}) {
    CAPTURE(std::string(policy));
    const RunResult result = run_training(request(folder, mesh, policy));
    CHECK(losses(result) == losses(still));
    for (const report::StepMetrics& m : result.metrics) {
      CHECK(m["rebalance_seconds"]);
      // Decisions fall between steps 2 and 3, 4 and 5, ...
      if (m.step % 2 == 0 || m.step == 1) CHECK(m["migrated_experts"] == 0);
      // Both projections and the way down, of 12 bytes a parameter.
      CHECK(m["migrated_bytes"] == *m["migrated_experts"] * 3 * 32 * 48 * 12);
    }
    if (std::string(policy) != "price") CHECK(migrated(result) > 0);
  }
}

TEST_CASE("by threshold the busiest rank of a skewed run has fewer rows afterwards") {
  const piper::testing::TestFolder folder;
  RunRequest r = request(folder, {.pp = 1, .ep = 4, .dp = 4}, "threshold:1.01");
  r.options.learning_rate.peak = r.options.learning_rate.minimum = 1e-7;  // the routers stay
  std::string said;
  r.say = [&](const std::string& line) { said += line + "\n"; };
  const RunResult result = run_training(r);
  // What is promised before step 3 stands beside what was measured before step 5.
  CHECK(said.find("before step 3: ") != std::string::npos);
  CHECK(said.find("up to step 4 a step took ") != std::string::npos);
  CHECK(said.find("up to step 2 ") == std::string::npos);
  const auto busiest = [&](size_t first, size_t last) {
    double sum = 0;
    for (size_t step = first; step <= last; ++step)
      sum += result.metrics[step - 1]["rank_imbalance"].value();
    return sum / static_cast<double>(last - first + 1);
  };
  REQUIRE(result.metrics[2]["migrated_experts"] > 0);
  CHECK(busiest(3, 8) < busiest(1, 2));
}

TEST_CASE("a run that was stopped after it had rebalanced goes on as if it had not been stopped") {
  const piper::testing::TestFolder folder;
  const strategy::Mesh mesh{.pp = 2, .ep = 2, .dp = 4};
  for (const char* policy : {"threshold:1.01", "random:0.5"}) {
    CAPTURE(std::string(policy));
    RunRequest whole = request(folder, mesh, policy);
    const RunResult expected = run_training(whole);
    REQUIRE(migrated(expected) > 0);
    for (const int64_t stop : {3, 4}) {
      CAPTURE(stop);
      RunRequest r = request(folder, mesh, policy);
      r.folder = folder.path() / (std::string(policy) + std::to_string(stop));
      r.checkpoint_every = 1;
      r.stop_after = stop;
      run_training(r);
      const Json manifest = read_json_file(r.folder / "checkpoints" /
                                           checkpoint::checkpoint_name(stop) / "manifest.json");
      CHECK(manifest.dump().find(kExpertPlacement) != std::string::npos);
      r.stop_after = 0;
      r.resume = true;
      const RunResult rest = run_training(r);
      for (const report::StepMetrics& metrics : rest.metrics) {
        const report::StepMetrics& same = expected.metrics[static_cast<size_t>(metrics.step - 1)];
        CHECK(metrics["loss"] == same["loss"]);
        CHECK(metrics["grad_norm"] == same["grad_norm"]);
        for (const report::MetricName name :
             {report::MetricName("migrated_experts"), report::MetricName("migrated_bytes"),
              report::MetricName("rank_imbalance")})
          CHECK(metrics[name] == same[name]);
      }
    }
  }
}

TEST_CASE("a checkpoint with moved experts loads on any mesh") {
  const piper::testing::TestFolder folder;
  RunRequest r = request(folder, {.pp = 1, .ep = 4, .dp = 4}, "random:1");
  r.checkpoint_every = 1;
  r.stop_after = 4;
  run_training(r);
  for (const strategy::Mesh& mesh :
       {strategy::Mesh{.pp = 1, .ep = 2, .dp = 4}, strategy::Mesh{.pp = 2, .ep = 1, .dp = 1}}) {
    RunRequest other = request(folder, mesh, "off");
    other.strategy.global_batch_sequences = r.strategy.global_batch_sequences;
    other.strategy.num_micro_batches =
        other.strategy.global_batch_sequences / mesh.dp / other.strategy.micro_batch_sequences;
    other.folder = folder.path() / ("ep" + std::to_string(mesh.ep));
    std::filesystem::create_directories(other.folder);
    std::filesystem::copy(r.folder / "checkpoints", other.folder / "checkpoints",
                          std::filesystem::copy_options::recursive);
    other.resume = true;
    std::string said;
    other.say = [&](const std::string& line) { said += line + "\n"; };
    RunRequest goes_on = r;
    goes_on.rebalance = {};
    goes_on.stop_after = 0;
    goes_on.resume = true;
    goes_on.folder = folder.path() / ("same" + std::to_string(mesh.ep));
    std::filesystem::create_directories(goes_on.folder);
    std::filesystem::copy(r.folder / "checkpoints", goes_on.folder / "checkpoints",
                          std::filesystem::copy_options::recursive);
    const RunResult expected = run_training(goes_on), result = run_training(other);
    CHECK(said.find("experts were placed on 4 ranks") != std::string::npos);
    for (size_t i = 0; i < expected.metrics.size(); ++i)
      CHECK(result.metrics[i]["loss"].value() ==
            doctest::Approx(expected.metrics[i]["loss"].value()).epsilon(1e-4));
  }
}

TEST_CASE("a rank that fails while experts move leaves the last checkpoint intact") {
  const piper::testing::TestFolder folder;
  RunRequest r = request(folder, {.pp = 1, .ep = 4, .dp = 4}, "random:1");
  const RunResult expected = run_training(r);
  r.folder = folder.path() / "failing";
  r.checkpoint_every = 2;
  // Rank 2 meets its end at the third migration: it holds another placement than its peers, so it
  // would send what nobody awaits.
  r.after_step = [](int64_t step, RankTrainer& trainer) {
    if (step == 6 && trainer.rank() == Rank(2)) throw CommError("rank 2 was taken away");
  };
  r.options.timeout_seconds = 5;
  std::string said;
  try {
    run_training(r);
  } catch (const std::exception& error) {
    said = error.what();
  }
  CHECK(said.find("rank 2") != std::string::npos);
  r.after_step = {};
  r.resume = true;
  const RunResult rest = run_training(r);
  for (const report::StepMetrics& metrics : rest.metrics)
    CHECK(metrics["loss"] == expected.metrics[static_cast<size_t>(metrics.step - 1)]["loss"]);
}

TEST_CASE("copies of hot experts are chosen again and again, and the busiest rank has fewer rows") {
  const piper::testing::TestFolder folder;
  RunRequest r = request(folder, {.pp = 2, .ep = 2, .dp = 4}, "replicate");
  r.strategy.redundant_experts = 4;
  std::string said;
  r.say = [&](const std::string& line) { said += line + "\n"; };
  const RunResult expected = run_training(r);
  CHECK(said.find("hold copies of other experts") != std::string::npos);
  CHECK(migrated(expected) == 0);
  RunRequest off = request(folder, {.pp = 2, .ep = 2, .dp = 4}, "threshold:1000000");
  const RunResult plain = run_training(off);
  for (size_t i = 0; i < expected.metrics.size(); ++i)
    CHECK(expected.metrics[i]["loss"].value() ==
          doctest::Approx(plain.metrics[i]["loss"].value()).epsilon(1e-4));
  const auto imbalance = [](const RunResult& result) {
    double sum = 0;
    for (size_t i = 4; i < 8; ++i) sum += result.metrics[i]["rank_imbalance"].value();
    return sum;
  };
  CHECK(imbalance(expected) < imbalance(plain));
  // Stopped and gone on with, to the bit; and with other slots than before.
  r.folder = folder.path() / "stopped";
  r.checkpoint_every = 1;
  r.stop_after = 5;
  run_training(r);
  r.stop_after = 0;
  r.resume = true;
  for (const int64_t redundant : {4, 2, 0}) {
    CAPTURE(redundant);
    RunRequest rest = r;
    rest.strategy.redundant_experts = redundant;
    if (redundant == 0) rest.rebalance = {};
    rest.folder = folder.path() / ("rest" + std::to_string(redundant));
    std::filesystem::create_directories(rest.folder);
    std::filesystem::copy(r.folder / "checkpoints", rest.folder / "checkpoints",
                          std::filesystem::copy_options::recursive);
    const RunResult result = run_training(rest);
    for (const report::StepMetrics& metrics : result.metrics) {
      const double same = expected.metrics[static_cast<size_t>(metrics.step - 1)]["loss"].value();
      if (redundant == 4)
        CHECK(metrics["loss"] == same);
      else
        CHECK(metrics["loss"].value() == doctest::Approx(same).epsilon(1e-4));
    }
  }
}

TEST_CASE("a run begins with the placement of a file, and refuses one that is none") {
  const piper::testing::TestFolder folder;
  const strategy::Mesh mesh{.pp = 1, .ep = 2, .dp = 2};
  RunRequest r = request(folder, mesh, "off");
  const RunResult plain = run_training(r);
  const auto read = [&](const char* text) {
    return read_placements(folder.write("placement.json", text).string(), r.model, r.strategy);
  };
  r.placements = read(R"({"1": [[7, 0, 2, 4], [6, 1, 3, 5]]})");
  r.folder = folder.path() / "placed";
  CHECK(losses(run_training(r)) == losses(plain));
  const auto refused = [&](const char* text) { return failure([&] { read(text); }); };
  CHECK(refused(R"({"1": [[0, 1, 2, 3], [4, 5, 6]]})")
            .ends_with("layer 1: no rank holds expert 7; allowed: every expert on a rank"));
  CHECK(refused(R"({"1": [[0, 1, 2, 3, 0], [4, 5, 6, 7]]})")
            .ends_with("layer 1: rank 0 holds expert 0 twice; allowed: once on a rank"));
  CHECK(refused(R"({"1": [[0, 1, 2], [3, 4, 5, 6, 7]]})")
            .ends_with("layer 1 is placed as 0 1 2 | 3 4 5 6 7; allowed: one copy of each expert, "
                       "equally many on each of the 2 ranks of an expert group"));
  CHECK(refused(R"({"2": [[0, 1, 2, 3], [4, 5, 6, 7]]})").find("'2' is no layer with experts") !=
        std::string::npos);
}

TEST_CASE("a policy that cannot be followed is refused before the run") {
  const piper::testing::TestFolder folder;
  RunRequest r = request(folder, {.pp = 1, .ep = 1, .dp = 2}, "threshold:1.3");
  const auto experts = cost::expert_bytes(r.model, r.strategy.precision);
  const auto said = [&] { return problems(r.rebalance, r.strategy, experts); };
  CHECK(said() == std::vector<std::string>{"--rebalance is threshold:1.3, but ep is 1: no rank "
                                           "could take an expert; allowed: off, or ep from 2"});
  CHECK(failure([&] { run_training(r); }) == said().front());
  r.strategy.mesh.ep = 2;
  CHECK(said().empty());
  r.rebalance.budget_bytes = 100000;
  CHECK(said() ==
        std::vector<std::string>{"--rebalance-budget is 97.66 KiB; allowed: at least the two "
                                 "experts of an exchange, 54.00 KiB each"});
  r.rebalance.budget_bytes = 2 * experts.at(0).bytes;
  CHECK(said().empty());
  CHECK(problems(r.rebalance, r.strategy, {}).front().find("the model is dense") !=
        std::string::npos);
}

}  // namespace piper::train
