#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/report/run_files.h>
#include <unistd.h>

#include <fstream>

using namespace piper;
using namespace piper::report;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / ("piper_run_files_test_" + std::to_string(getpid()));
  Folder() { fs::create_directories(path / "plans"); }
  ~Folder() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path / name) << text;
  }
};

std::vector<std::string> problems(const std::function<void()>& run) {
  try {
    run();
  } catch (const InvalidInput& error) {
    return error.problems();
  }
  return {};
}

}  // namespace

TEST_CASE("metrics read back as written, unknown keys and a line cut short are passed over") {
  StepMetrics row{.step = 3};
  row["loss"] = 2.5, row["grad_norm"] = 1, row["step_seconds"] = 0.25, row["mfu"] = 0.5;
  row["peak_bytes"] = 7, row["load_imbalance"] = 1.5, row["dropped_fraction"] = 0.125;
  const std::string text =
      to_json(row).dump() + "\n\n{\"step\": 4, \"loss\": null, \"mood\": [1]}\n{\"step\": 5, \"lo";
  const std::vector<StepMetrics> rows = parse_metrics(text, "m");
  REQUIRE(rows.size() == 2);
  CHECK(to_json(rows[0]) == to_json(row));
  CHECK(rows[1].step == 4);
  CHECK_FALSE(rows[1]["loss"]);
}

TEST_CASE("after a resume the later row of a step counts") {
  const auto rows = parse_metrics(
      "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":1}\n{\"step\":2,"
      "\"loss\":9}\n",
      "m");
  REQUIRE(rows.size() == 2);
  CHECK(rows[1]["loss"] == 9.0);
}

TEST_CASE("a bad line of metrics is named by file and line") {
  const auto lines = problems([] { parse_metrics("{\"step\":1}\n{\"loss\":\"x\"}\n", "m.jsonl"); });
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "m.jsonl, line 2: 'step' is missing");
  CHECK(lines[1].find("m.jsonl, line 2: 'loss' is \"x\"; allowed: ") == 0);
}

TEST_CASE("a comparison reads back as written, its errors relative to the measurement") {
  const Comparison comparison{
      .predicted_step_seconds = 0.3,
      .measured_step_seconds = 0.4,
      .measured_mfu = 0.25,
      .machine_slowdown = 1.1,
      .no_prediction = "no figures",
      .measured_step = 37,
      .num_steps = 60,
      .time_components = {{.name = "experts", .predicted_seconds = 0.1}},
      .ranks = {{.rank = 1,
                 .stage = 0,
                 .predicted_peak_bytes = 90,
                 .measured_peak_bytes = 100,
                 .predicted_components = {{"weights", 50}, {"activations", 40}}}}};
  const Json json = to_json(comparison);
  const Comparison read = parse_comparison(json, "c");
  CHECK(to_json(read) == json);
  CHECK_FALSE(read.predicted_mfu);
  CHECK(read.no_prediction == "no figures");
  CHECK_FALSE(to_json(Comparison{}).contains("no_prediction"));
  CHECK_FALSE(read.ranks[0].limit_bytes);
  CHECK(read.ranks[0].predicted_components[1] ==
        std::pair<std::string, int64_t>("activations", 40));
  CHECK(relative_error(0.3, 0.4).value() == doctest::Approx(-0.25));
  CHECK_FALSE(relative_error(0.3, std::nullopt));
  CHECK_FALSE(relative_error(0.3, 0.0));
}

TEST_CASE(
    "what lies beyond a bound is listed with what was assumed; a short component only when it "
    "moves the step") {
  Comparison c{.predicted_step_seconds = 1.0,
               .measured_step_seconds = 1.5,
               .planned_step_seconds = 1.4,
               .expected_load_imbalance = 1.05,
               .measured_load_imbalance = 1.1,
               .time_components = {{"experts", 0.2, 0.6}, {"gate", 0.01, 0.05}, {"head", 0.3, 0.3}},
               .ranks = {{.rank = 0, .predicted_peak_bytes = 100, .measured_peak_bytes = 104},
                         {.rank = 1, .predicted_peak_bytes = 100, .measured_peak_bytes = 110}}};
  const std::vector<Deviation> found = deviations(c, 0.25);
  REQUIRE(found.size() == 3);
  CHECK(found[0].name == "step time");
  CHECK(found[0].relative == doctest::Approx(0.5));
  CHECK(found[1].name == "experts");
  CHECK(found[1].measured == "600.0 ms");
  CHECK(found[2].name == "peak memory, rank 1");
  c.measured_load_imbalance = 1.6;
  CHECK(deviations(c, 0.25)[2].name.find("load imbalance, as planned") == 0);
  CHECK(deviations(c, 0.25)[2].assumed == "1.05");
  c.expected_load_imbalance = 1.5;  // such a load was planned for
  CHECK(deviations(c, 0.25)[2].name.find("imbalance") == std::string::npos);
  c.expected_load_imbalance = 1;
  c.planned_step_seconds.reset();  // the prediction itself has the real routes
  for (const Deviation& d : deviations(c, 0.25))
    CHECK(d.name.find("imbalance") == std::string::npos);
}

TEST_CASE("the expert load reads back as written") {
  const ExpertRows rows{.num_steps = 2,
                        .layers = {{.layer = 1, .rows = {10, 30}, .over_time = {{4, 6}, {6, 24}}},
                                   {.layer = 3, .rows = {0, 0}}},
                        .span_ends = {1, 2}};
  Json broken = to_json(rows);
  broken["layers"][0]["over_time"][1] = {1};
  CHECK_THROWS_AS(parse_expert_rows(broken, "e"), InvalidInput);
  CHECK(to_json(parse_expert_rows(to_json(rows), "e")) == to_json(rows));
  CHECK(rows.layers[0].imbalance() == 1.5);  // 30 of a mean of 20
  CHECK(rows.layers[1].imbalance() == 0);
}

TEST_CASE("the planner's document gives ranked rows and refusals") {
  const Json json = parse_json(
      R"({"model": {"name": "m"}, "cluster": "c", "num_devices": 8, "sequence": 64, "notes": ["why"],
    "strategies": [{"mesh": {"pp": 2, "ep": 2, "dp": 2, "edp": 1}, "micro_batch_sequences": 1, "num_micro_batches": 4,
      "schedule": "1f1b", "recompute": "none", "predicted": {"mfu": 0.4, "step_seconds": 1.5, "peak_bytes": 1000, "memory": {}}}],
    "rejected": [{"family": "pp 1", "constraint": "needs 3 GiB", "equation": "eq. 11", "smallest_change": "recompute full"}]})",
      "p");
  const PlanDocument plan = parse_plan_document(json, "p");
  CHECK(plan.model == "m");
  CHECK(plan.num_devices == 8);
  REQUIRE(plan.ranked.size() == 1);
  CHECK(plan.ranked[0].mesh == "pp 2 · ep 2 · dp 2");
  CHECK(plan.ranked[0].mfu == 0.4);
  CHECK(plan.rejected[0].smallest_change == "recompute full");
  CHECK(problems([] {
          parse_plan_document(parse_json(R"({"strategies": [{}]})", "p"), "p.json");
        }) == std::vector<std::string>{"p.json: 'strategies[0].mesh' is missing"});
}

TEST_CASE("one strategy's record is a list of one") {
  const auto json =
      parse_json(R"({"model": "m", "mesh": {"pp": 2, "ep": 4, "dp": 8}, "schedule": "1f1b"})", "s");
  const PlanDocument plan = parse_plan_document(json, "s");
  CHECK(plan.num_devices == 16);
  REQUIRE(plan.ranked.size() == 1);
  CHECK(plan.ranked[0].mesh == "pp 2 · ep 4 · dp 8");
}

TEST_CASE("a folder without a run is an error, bad files are reported together") {
  const Folder folder;
  CHECK_THROWS_AS(read_run(folder.path / "absent"), IoError);
  CHECK_THROWS_AS(read_run(folder.path), IoError);
  folder.write(kMetricsFile, "{}\n");
  folder.write(kComparisonFile, "{\"rnks\": []}");
  folder.write(kExpertLoadFile, "[");
  CHECK(problems([&] { read_run(folder.path); }).size() == 3);
}

TEST_CASE("the trained strategy is marked in the plan and carries what was measured") {
  const Folder folder;
  folder.write(kRunFile,
               R"({"model": "tiny", "cluster": "here", "facts": {"parameters": "10 M"}})");
  folder.write(
      kStrategyFile,
      R"({"model": "tiny", "cluster": "here", "mesh": {"pp": 2, "ep": 2, "dp": 2}, "layers_per_stage": [2, 2],
    "schedule": "1f1b", "recompute": "none", "precision": "fp32", "sequence": 128, "global_batch_sequences": 8,
    "micro_batch_sequences": 1, "num_micro_batches": 4})");
  folder.write(kPlanFile, R"({"strategies": [
    {"mesh": {"pp": 1, "ep": 4, "dp": 4}, "schedule": "1f1b", "recompute": "none", "micro_batch_sequences": 1, "num_micro_batches": 4},
    {"mesh": {"pp": 2, "ep": 2, "dp": 2}, "schedule": "1f1b", "recompute": "none", "micro_batch_sequences": 1, "num_micro_batches": 4}]})");
  folder.write(
      kComparisonFile,
      R"({"measured_step_seconds": 0.5, "ranks": [{"rank": 0, "measured_peak_bytes": 5}, {"rank": 1, "measured_peak_bytes": 9}]})");
  folder.write("plans/b.json", R"({"model": "b", "strategies": []})");
  folder.write("plans/a.json", R"({"model": "a", "strategies": []})");
  const Report report = read_run(folder.path);
  CHECK(report.header.model == "tiny");
  CHECK(report.header.strategy.find("pp 2 · ep 2 · dp 2 on 4 ranks") == 0);
  REQUIRE(report.plan);
  CHECK_FALSE(report.plan->ranked[0].chosen);
  CHECK(report.plan->ranked[1].chosen);
  CHECK(report.plan->ranked[1].measured_peak_bytes == 9);
  CHECK(report.plan->ranked[1].measured_step_seconds == 0.5);
  REQUIRE(report.further_plans.size() == 2);
  CHECK(report.further_plans[0].model == "a");
}

TEST_CASE("a plan for the run's own model and cluster is its ranking, any other a further plan") {
  const Folder folder;
  folder.write(
      kStrategyFile,
      R"({"model": "tiny", "cluster": "here", "mesh": {"pp": 1, "ep": 1, "dp": 1}, "layers_per_stage": [2],
    "schedule": "gpipe", "recompute": "none", "precision": "fp32", "sequence": 128, "global_batch_sequences": 2,
    "micro_batch_sequences": 1, "num_micro_batches": 2, "predicted": {"mfu": 0.5}})");
  Report report = read_run(folder.path);
  REQUIRE(report.plan);
  CHECK(report.plan->ranked[0].chosen);
  CHECK(report.plan->ranked[0].mfu == 0.5);
  PlanRow row = report.plan->ranked[0];
  row.chosen = false;
  add_plan(report, {.model = "tiny", .cluster = "elsewhere"});
  CHECK(report.further_plans.size() == 1);
  CHECK(report.plan->ranked.size() == 1);
  add_plan(report, {.model = "tiny", .cluster = "here", .ranked = {{.mesh = "pp 9"}, row}});
  CHECK(report.further_plans.size() == 1);
  CHECK_FALSE(report.plan->ranked[0].chosen);
  CHECK(report.plan->ranked[1].chosen);
}
