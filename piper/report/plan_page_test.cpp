#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/report/part_bars.h>
#include <piper/report/plan_page.h>
#include <testing/base/text.h>

#include <array>

using namespace piper;
using namespace piper::report;

namespace {

constexpr const char* kPlan = R"({
  "model": "<model>", "cluster": "c & d", "trainer": "piper", "num_devices": 64, "memory_limit_bytes": 7.2e10,
  "defaults": {"sequence": {"value": 4096, "why": "<why>"}},
  "strategies": [{"mesh": {"pp": 2, "ep": 8, "dp": 32, "edp": 4, "tp": 1, "vpp": 3}, "zero": 1, "schedule": "1f1b",
    "recompute": "none", "micro_batch_sequences": 1, "num_micro_batches": 16,
    "predicted": {"mfu": 0.4, "step_seconds": 2.5, "peak_bytes": 6.05e10,
      "time": {"compute_seconds": 2.0, "idle_seconds": 0.5},
      "memory": {"fullest_stage": 0, "weights_and_gradients_bytes": 4e10, "activations_bytes": 2.05e10},
      "not_runnable": ["zero <1>"]}}],
  "families": [{"family": "pipeline", "wins": true, "why_it_lost": "largest MFU", "smallest_change": "-", "num_priced": 7,
     "best": {"mesh": {"pp": 2, "ep": 8, "dp": 32}, "predicted": {"mfu": 0.4, "time": {"compute_seconds": 2}}}},
    {"family": "tensor parallel", "why_it_lost": "does not <fit>", "smallest_change": "9 GiB more", "num_priced": 3,
     "nearest": {"mesh": {"pp": 1, "ep": 8, "dp": 8, "tp": 8}, "predicted": {"peak_bytes": 9e10,
        "memory": {"activations_bytes": 9e10}}}}],
  "pareto": [{"mfu": 0.4, "step_seconds": 2.5, "peak_bytes": 6.05e10, "strategy": "<fast>"},
             {"mfu": 0.3, "step_seconds": 3.3, "peak_bytes": 3e10, "strategy": "small"}],
  "sensitivity": {"change": 0.2, "inputs": [
     {"input": "compute <efficiency>", "value": "80 %", "low_mfu": 0.33, "high_mfu": 0.46},
     {"input": "imbalance", "value": "1.00", "low_mfu": 0.4, "high_mfu": 0.38},
     {"input": "latency of level pod", "value": "5 us", "low_mfu": 0.4, "high_mfu": 0.4}]},
  "roofline": {"peak_flops_per_second": 9.89e14, "memory_bytes_per_second": 3.35e12, "points": [
     {"part": "<scores>", "num_layers": 32, "flops_per_byte": 900, "bound": "compute", "peak_flops_per_second": 9.89e14,
      "attainable_flops_per_second": 9.89e14, "predicted_flops_per_second": 5e14},
     {"part": "routed experts", "num_layers": 32, "flops_per_byte": 60, "bound": "memory",
      "peak_flops_per_second": 9.89e14, "attainable_flops_per_second": 2e14, "predicted_flops_per_second": 1e14}]}
})";

constexpr std::array kSections = {"ranked", "memory",      "time",    "families",
                                  "pareto", "sensitivity", "roofline"};

PlanDocument document() { return parse_plan_document(parse_json(kPlan, "plan.json"), "plan.json"); }

std::string section_of(const std::string& html, const std::string& id) {
  const size_t from = html.find("<section id=\"" + id + "\">");
  REQUIRE(from != std::string::npos);
  return html.substr(from, html.find("</section>", from) - from);
}

}  // namespace

TEST_CASE(
    "every section of a full plan has its picture or table and none says that it is missing") {
  const std::string html = render(document());
  CHECK(html.starts_with("<!DOCTYPE html>"));
  for (const char* id : kSections) {
    CAPTURE(id);
    const std::string section = section_of(html, id);
    CHECK(!contains(section, "class=\"absent\""));
    CHECK((contains(section, "<svg") || contains(section, "<table")));
  }
  CHECK(!contains(html, "<script"));
  CHECK(!contains(html, "src="));
  CHECK(html == render(document()));
}

TEST_CASE("the ranking says what stands in the way of running a strategy here") {
  CHECK(contains(section_of(render(document()), "ranked"), "this Piper lacks: zero &lt;1&gt;"));
  std::string json = kPlan;
  const std::string lacks = "\"not_runnable\": [\"zero <1>\"]";
  json.replace(json.find(lacks), lacks.size(), "\"untrainable\": [\"m: layer 0: sinks\"]");
  const PlanDocument plan = parse_plan_document(parse_json(json, "plan.json"), "plan.json");
  CHECK(contains(section_of(render(plan), "ranked"), "this Piper lacks: the model"));
}

TEST_CASE("texts of a plan cannot become markup") {
  const std::string html = render(document());
  for (const char* text :
       {"<model>", "<why>", "<fit>", "<fast>", "<efficiency>", "<scores>", "<1>"}) {
    CAPTURE(text);
    CHECK(!contains(html, text));
  }
  CHECK(contains(html, "&lt;scores&gt;"));
}

TEST_CASE("the document's figures are on the page: mesh without idle axes, components, verdicts") {
  const PlanDocument plan = document();
  CHECK(plan.ranked.front().mesh == "pp 2 · ep 8 · dp 32 · vpp 3");
  CHECK(plan.ranked.front().further == "zero 1");
  CHECK(plan.ranked.front().bytes.front() ==
        std::pair<std::string, double>("weights and gradients", 4e10));
  CHECK(plan.ranked.front().seconds.back() == std::pair<std::string, double>("idle", 0.5));
  const std::string html = render(plan);
  CHECK(contains(section_of(html, "families"), "9 GiB more"));
  CHECK(contains(section_of(html, "families"), "class=\"chosen\""));  // the one that wins
  CHECK(contains(section_of(html, "memory"), "tensor parallel (no)"));
  CHECK(contains(section_of(html, "sensitivity"), "Without visible effect: latency of level pod."));
  CHECK(contains(section_of(html, "roofline"), "of its roof"));
}

TEST_CASE("a strategy file alone makes a page whose missing parts say so") {
  const PlanDocument plan = parse_plan_document(
      parse_json(
          R"({"model": "m", "mesh": {"pp": 2, "ep": 1, "dp": 4, "tp": 2}, "predicted": {"mfu": 0.4,
        "memory_limit_bytes": 8e10, "memory": {"fixed_bytes": 1e9}, "sensitivity": {"change": 0.2, "inputs": []}}})",
          "s.json"),
      "s.json");
  CHECK(plan.num_devices == 16);
  CHECK(plan.ranked.size() == 1);
  CHECK(plan.memory_limit_bytes == 8e10);
  const std::string html = render(plan);
  for (const char* id : {"time", "families", "pareto", "sensitivity", "roofline"}) {
    CAPTURE(id);
    CHECK(contains(section_of(html, id), "class=\"absent\""));
  }
  CHECK(contains(section_of(html, "memory"), "<svg"));
}

TEST_CASE("a plan where nothing fits says so at the head and in the ranking") {
  PlanDocument plan = document();
  plan.ranked.clear();
  const std::string html = render(plan);
  CHECK(contains(html, "Nothing fits this machine."));
  CHECK(contains(section_of(html, "ranked"), "No strategy fits"));
  CHECK(contains(section_of(html, "families"), "does not &lt;fit&gt;"));
}

TEST_CASE("what is no plan is refused with all its problems") {
  CHECK_THROWS_WITH_AS(parse_plan_document(parse_json("{}", "x"), "x.json"),
                       doctest::Contains("'strategies' is missing"), InvalidInput);
  CHECK_THROWS_WITH_AS(
      parse_plan_document(parse_json(R"({"strategies": [{}], "pareto": [{"mfu": -1}]})", "x"),
                          "x.json"),
      doctest::Contains("pareto[0].mfu"), InvalidInput);
}

TEST_CASE(
    "one part has one colour in all bars, and parts that nothing spends time on are left "
    "out") {
  const PartBars chart{.description = "d",
                       .bars = {{.label = "a", .parts = {{"x", 0}, {"y", 2}}},
                                {.label = "b", .parts = {{"y", 1}, {"z", 1}}}},
                       .format = [](double v) { return std::to_string(static_cast<int>(v)); }};
  const std::string html = part_bars(chart);
  CHECK(contains(html, "<i class=\"part-0\"></i>y"));
  CHECK(contains(html, "<i class=\"part-1\"></i>z"));
  CHECK(!contains(html, "</i>x"));
  CHECK(part_bars({.bars = {{.label = "a", .parts = {{"x", 0}}}}, .format = chart.format}).empty());
}
