#include <doctest/doctest.h>
#include <piper/base/json.h>
#include <piper/files/output.h>
#include <piper/report/run_files.h>
#include <piper/train/run.h>
#include <testing/cost/example_model.h>
#include <tests/test_folder.h>

#include <cmath>

namespace piper::train {
namespace {

// One rank and no figures for fp32.
RunRequest unpriced_run(const std::filesystem::path& folder) {
  RunRequest r;
  r.model = cost::example::mixture(1);
  r.model.vocabulary = 256;
  r.strategy = cost::example::strategy(r.model, 1, 1, 1, 1);
  r.cluster = cost::example::nodes();
  r.cluster.compute.erase("fp32");
  r.corpus = data::Corpus(data::Text(std::string(4000, 'x'), "text"));
  r.folder = folder;
  r.num_steps = 3;
  return r;
}

}  // namespace

TEST_CASE("a cluster without figures for the precision trains, without a prediction, and says so") {
  const piper::testing::TestFolder folder;
  RunRequest r = unpriced_run(folder.path() / "run");
  std::vector<std::string> said;
  r.say = [&](const std::string& line) { said.push_back(line); };
  const RunResult result = run_training(r);
  const std::string missing =
      "cluster nodes has no compute figures for 'fp32'; allowed: bf16, fp64";
  CHECK(said == std::vector<std::string>{"nothing is predicted: " + missing});
  REQUIRE(result.metrics.size() == 3);
  CHECK(std::isnan(result.metrics.back()["mfu"].value()));
  CHECK(report::console_lines(result.metrics.back())[0].find("| MFU - |") != std::string::npos);
  CHECK_FALSE(result.prediction.has_value());
  CHECK_FALSE(result.prediction_with_load.has_value());
  CHECK_FALSE(result.same_order.has_value());
  const report::Comparison& c = result.comparison;
  CHECK(c.no_prediction == missing);
  CHECK_FALSE(c.predicted_step_seconds.has_value());
  CHECK_FALSE(c.measured_mfu.has_value());
  CHECK(c.measured_step_seconds.value_or(0) > 0);
  REQUIRE(c.ranks.size() == 1);
  CHECK_FALSE(c.ranks[0].predicted_peak_bytes.has_value());
  CHECK(c.ranks[0].measured_peak_bytes.value_or(0) > 0);
  CHECK(!c.time_components.empty());

  files::write_json_file(r.folder / report::kRunFile,
                         report::to_json(report::Header{.model = "small"}));
  const std::string page = report::render(report::read_run(r.folder));
  CHECK(page.find("Nothing was predicted for this run: cluster nodes has no compute figures") !=
        std::string::npos);
}

TEST_CASE(
    "a run that runs out of memory in a precision without figures still says what would help") {
  const piper::testing::TestFolder folder;
  RunRequest r = unpriced_run(folder.path() / "run");
  r.memory_limit_bytes = 1 << 16;
  std::string what;
  try {
    run_training(r);
  } catch (const std::exception& error) {
    what = error.what();
  }
  CHECK(what.find("out of memory on rank 0") != std::string::npos);
  CHECK(what.find("what would help") != std::string::npos);
}

}  // namespace piper::train
