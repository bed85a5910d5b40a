#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <studies/phases.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>

using namespace piper;
using namespace piper::studies;

namespace {

const PricedPhase& phase_of(const std::vector<PricedPhase>& phases, const std::string& name) {
  const auto found =
      std::ranges::find(phases, name, [](const PricedPhase& p) { return p.phase.name; });
  REQUIRE(found != phases.end());
  return *found;
}

double error_of(const std::vector<PricedPhase>& phases, const std::string& name) {
  return phase_of(phases, name).error();
}

}  // namespace

TEST_CASE("phases of DeepSeek-V3 on H800: compute within 20 %, exchanges 25 %, the pair 10 %") {
  const std::vector<PricedPhase> phases = price_phases(load_phase_run("deepseek-v3-h800"));
  // What was aimed at before anything was priced. A dispatch of known layout, combine(B), moves
  // what dispatch(F) moves; what dispatch(F) takes beyond it, to place rows and to wait, has no
  // price: there the price is held from below and by the mean of the two.
  const std::map<std::string, double> aims{
      {"attn(F)", 0.2},          {"mlp(F)", 0.2},       {"attn(B)", 0.2},
      {"mlp(B)", 0.2},           {"combine(F)", 0.25},  {"combine(B)", 0.25},
      {"attn(W) + mlp(W)", 0.2}, {"dispatch(B)", 0.25}, {"forward + backward pair", 0.1}};
  REQUIRE(phases.size() == aims.size() + 1);
  for (const auto& [name, aim] : aims) {
    CAPTURE(name);
    CHECK(std::abs(error_of(phases, name)) <= aim);
  }
  const PricedPhase& slow = phase_of(phases, "dispatch(F)");
  const PricedPhase& known = phase_of(phases, "combine(B)");
  CHECK(slow.predicted_seconds == known.predicted_seconds);
  CHECK(slow.predicted_seconds < slow.phase.measured_seconds);
  const double mean = (slow.phase.measured_seconds + known.phase.measured_seconds) / 2;
  CHECK(std::abs(slow.predicted_seconds / mean - 1) <= 0.25);
  for (const PricedPhase& p : phases) CHECK((p.holds() || !p.phase.cause.empty()));
}

TEST_CASE("an exchange of 64 ranks takes its bytes over the NIC's rate, by hand") {
  // 8 nodes; 8 choices of a token, each on any node alike: it enters 7 (1 - (7/8)^8) others. A
  // pod's links carry 44.625 GB/s a device, 27 us away.
  const double entered = 4096 * 7 * (1 - std::pow(7. / 8, 8));
  const auto seconds = [&](double row_bytes) { return entered * row_bytes / 44.625e9 + 27e-6; };
  const std::vector<PricedPhase> phases = price_phases(load_phase_run("deepseek-v3-h800"));
  // FP8, a scale of 4 bytes for 128 values, 8 choices of 12 bytes; the trainer states five digits
  // of it.
  CHECK(phase_of(phases, "dispatch(F)").predicted_seconds ==
        doctest::Approx(seconds(7168 + 56 * 4 + 8 * 12)).scale(0).epsilon(1e-4));
  CHECK(phase_of(phases, "combine(F)").predicted_seconds ==
        doctest::Approx(seconds(2 * 7168)).scale(0).epsilon(1e-9));
}

TEST_CASE("fewer multiprocessors slow compute alone, more ranks the exchange alone") {
  PhaseRun run = load_phase_run("deepseek-v3-h800");
  const std::vector<PricedPhase> before = price_phases(run);
  run.units_for_compute = 56;
  const std::vector<PricedPhase> half = price_phases(run);
  CHECK(error_of(half, "attn(F)") > error_of(before, "attn(F)") + 0.2);
  CHECK(error_of(half, "combine(F)") == error_of(before, "combine(F)"));
  run.units_for_compute = 112;
  run.ep = 8;  // one node
  const std::vector<PricedPhase> node = price_phases(run);
  CHECK(error_of(node, "combine(F)") < error_of(before, "combine(F)") - 0.3);
  CHECK(error_of(node, "attn(F)") == error_of(before, "attn(F)"));
}

TEST_CASE("a run with a wrong price, layer or name is refused with what is allowed") {
  Json json{{"name", "x"},
            {"source", "y"},
            {"model", "deepseek-v3"},
            {"cluster", "h800"},
            {"trainer", "piper"},
            {"precision", "fp8"},
            {"layer", 0},
            {"tokens", 1},
            {"sequence", 1},
            {"ep", 1},
            {"tp", 1},
            {"units", 2},
            {"units_for_compute", 3},
            {"phases", Json::array({Json{{"name", "p"},
                                         {"price", "attn"},
                                         {"measured_seconds", 1},
                                         {"limit", 0.1},
                                         {"source", "s"}}})}};
  try {
    parse_phase_run(json, "f.json");
    FAIL("accepted");
  } catch (const InvalidInput& e) {
    REQUIRE(e.problems().size() == 2);
    CHECK(e.problems()[0] == "f.json: 'units_for_compute' is 3; allowed: an integer from 1 to 2");
    CHECK(e.problems()[1].find("phases[0].price") != std::string::npos);
  }
  json["units_for_compute"] = 2;
  json["phases"] = Json::array();
  CHECK_THROWS_AS(price_phases(parse_phase_run(json, "f.json")), InvalidInput);  // layer 0 is dense
  CHECK_THROWS_AS(load_phase_run("deepseek"), InvalidInput);
}

TEST_CASE("a summary of a trace is priced as the built-in run; a bad one is refused in one line") {
  const PhaseRun built_in = load_phase_run("deepseek-v3-h800");
  const auto of_stream = [](double us) { return Json{{"stream7", {{"median_us", us}}}}; };
  const auto of_kernel = [](const char* kernel, double us) {
    return Json{{"kernel_classes_us_median", {{kernel, us}}}};
  };
  Json json{{"trace_facts",
             {{"span_us", 129012}, {"busy_us", {{"stream7", 118165}, {"union_7_23", 124258}}}}},
            {"per_layer_pair_us", {{"mean_total_us", 32253.0}}},
            {"phases",
             {{"attn(F)", of_stream(4369.5)},
              {"mlp(F)", of_stream(4495)},
              {"attn(B)", of_stream(9410)},
              {"mlp(B)", of_stream(5407.5)},
              {"attn(W)", of_stream(2387)},
              {"mlp(W)", of_stream(3558)},
              {"dispatch(F)", of_kernel("stream27:ep_dispatch", 4312.5)},
              {"combine(B)", of_kernel("stream27:ep_dispatch", 3447.5)},
              {"combine(F)", of_kernel("stream27:ep_combine", 6027)},
              {"dispatch(B)", of_kernel("stream27:ep_combine", 6517.5)}}}};
  const std::string file = "phases_test_summary.json";
  const auto load = [&] {
    std::ofstream(file) << json.dump();
    return load_phase_run(file);
  };
  const PhaseRun run = load();
  REQUIRE(run.phases.size() == built_in.phases.size());
  for (size_t i = 0; i < run.phases.size(); ++i) {
    CAPTURE(run.phases[i].name);
    CHECK(run.phases[i].measured_seconds ==
          doctest::Approx(built_in.phases[i].measured_seconds).epsilon(1e-3));
  }
  json["phases"]["mlp(F)"] = of_stream(-1);
  CHECK_THROWS_WITH_AS(
      load(),
      (file + ": 'phases.mlp(F).stream7.median_us' is no positive number of microseconds").c_str(),
      InvalidInput);
  json.erase("phases");
  CHECK_THROWS_WITH_AS(load(), doctest::Contains("'phases' is missing"), InvalidInput);
  std::remove(file.c_str());
}
