#include <doctest/doctest.h>
#include <piper/report/report.h>
#include <testing/base/text.h>

#include <algorithm>
#include <array>
#include <string_view>

using namespace piper;
using namespace piper::report;

namespace {

// The first unbalanced tag of a page, or "". Void elements of HTML need no end.
std::string unbalanced(std::string_view html) {
  constexpr std::array kVoid = {"meta", "!DOCTYPE"};
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string_view::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string_view::npos) return "a tag without end";
    const std::string_view tag = html.substr(at + 1, end - at - 1);
    if (count(tag, "\"") % 2 != 0) return "quotes of <" + std::string(tag) + ">";
    const bool closes = tag.starts_with("/");
    const std::string name(
        tag.substr(closes ? 1 : 0, tag.find_first_of(" />", closes ? 1 : 0) - (closes ? 1 : 0)));
    if (std::find(kVoid.begin(), kVoid.end(), name) != kVoid.end() || tag.ends_with("/")) continue;
    if (!closes) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "</" + name + ">";
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : "<" + open.back() + ">";
}

Gantt one_bar(const std::string& name) {
  return {.ranks = {{.rank = 0,
                     .label = "rank 0",
                     .bars = {{.start_seconds = 0, .end_seconds = 1, .name = name}},
                     .memory = {{0, 0}, {1, 1 << 20}}}},
          .seconds = 1};
}

// Every text that comes from outside is `text`.
Report full(const std::string& text) {
  Report report;
  report.header = {.model = text, .cluster = text, .strategy = text, .facts = {{text, text}}};
  report.plan = PlanDocument{.model = text,
                             .cluster = text,
                             .notes = {text},
                             .ranked = {{.mesh = text,
                                         .schedule = text,
                                         .recompute = text,
                                         .micro_batch_sequences = 2,
                                         .num_micro_batches = 8,
                                         .mfu = 0.394,
                                         .step_seconds = 1.5,
                                         .peak_bytes = 3 << 20,
                                         .chosen = true,
                                         .measured_step_seconds = 1.25}},
                             .rejected = {{text, text, text}}};
  report.predicted = one_bar(text);
  report.measured = one_bar(text);
  report.comparison =
      Comparison{.predicted_step_seconds = 1.5,
                 .measured_step_seconds = 1.25,
                 .time_components = {{text, 0.5, 1.0}},
                 .ranks = {{.rank = 0,
                            .stage = 0,
                            .predicted_peak_bytes = 3 << 20,
                            .measured_peak_bytes = 2 << 20,
                            .limit_bytes = 4 << 20,
                            .predicted_components = {{text, 1 << 20}, {"weights", 2 << 20}},
                            .measured_components = {{text, 1 << 20}}}}};
  StepMetrics first{.step = 1}, second{.step = 2};
  first["loss"] = 5.545, first["load_imbalance"] = 1.5;
  second["loss"] = 3.25, second["validation_loss"] = 3.5, second["load_imbalance"] = 1.25;
  report.metrics = {first, second};
  report.expert_rows = ExpertRows{
      .num_steps = 2,
      .layers = {{.layer = 0, .rows = {0, 10, 30}, .over_time = {{0, 5, 15}, {0, 5, 15}}}},
      .span_ends = {1, 2}};
  report.further_plans = {*report.plan};
  cluster::Cluster machine{.name = text, .description = text, .device = text};
  machine.compute[text] = {
      .peak_flops_per_second = 1e12,
      .gemm = {{"m", "n", "k"}, {{1, 64}, {128}, {256, 512}}, {1e9, 2e9, 3e9, 4e9}}};
  machine.levels = {{.name = text, .num_members = 4, .link = {1e-6, 1e9}}};
  machine.numbers = {{text, 3}};
  report.machine = machine;
  return report;
}

// What `text` needs to be part of the page unescaped.
constexpr const char* kHostile = "<script>\"'&</section>";

}  // namespace

TEST_CASE("a full page is well-formed and needs nothing from elsewhere") {
  const std::string html = render(full("plain"));
  CHECK(unbalanced(html) == "");
  CHECK(count(html, "<section ") == 8);
  CHECK(count(html, "http") == count(html, "xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK(count(html, "<script") == 0);
  CHECK(count(html, "url(") == 0);
  CHECK(count(html, "src=") == 0);
  CHECK(count(html, "class=\"absent\"") == 0);
}

TEST_CASE("a page says how fast the machine was, where that was measured") {
  Report report = full("plain");
  CHECK(render(report).find("times as long for the reference layers") == std::string::npos);
  report.comparison->machine_slowdown = 1.25;
  CHECK(render(report).find("took 1.25 times as long for the reference layers") !=
        std::string::npos);
}

TEST_CASE("a page of a run that nothing was predicted for says why") {
  Report report = full("plain");
  CHECK(render(report).find("Nothing was predicted") == std::string::npos);
  report.comparison->no_prediction = "cluster here has no compute figures for 'fp64'";
  CHECK(render(report).find("Nothing was predicted for this run: cluster here has no compute "
                            "figures for &#39;fp64&#39;.") != std::string::npos);
}

TEST_CASE("a page says which step it shows, and marks what moves the step, not what is short") {
  Report report = full("plain");
  report.comparison->measured_step_seconds = 0.3;
  report.comparison->predicted_step_seconds = 0.31;
  report.comparison->ranks.clear();
  report.comparison->time_components = {{"norms", 0.0024, 0.0006}};  // +300 %, of 0.6 ms
  report.comparison->measured_step = 37;
  report.comparison->num_steps = 60;
  std::string html = render(report);
  CHECK(count(html, "class=\"large-error") == 0);
  CHECK(count(html, "step 37, the median of 60") == 2);           // the headline and the timeline
  report.comparison->time_components = {{"experts", 0.1, 0.07}};  // +43 %, a tenth of the step
  html = render(report);
  CHECK(count(html, "class=\"large-error") == 1);
}

TEST_CASE("a page says what load its prediction has, and what the plan assumed") {
  Report report = full("plain");
  report.comparison->expected_step_seconds = 0.2;
  report.comparison->measured_load_imbalance = 1.61;
  const std::string html = render(report);
  CHECK(html.find("with the routes of this step, in which the busiest expert had 1.61 times") !=
        std::string::npos);
  CHECK(html.find("the prediction is 200.0 ms") != std::string::npos);
  CHECK(html.find("load imbalance") == std::string::npos);  // nobody assumed an even one
}

TEST_CASE("an empty page says in a sentence what is missing, section by section") {
  const std::string html = render(Report{});
  CHECK(unbalanced(html) == "");
  CHECK(count(html, "<section ") == 8);
  CHECK(count(html, "class=\"absent\"") == 8);
  CHECK(count(html, "<svg") == 0);
  CHECK(count(html, "<table") == 0);
}

TEST_CASE("no text from outside becomes markup") {
  const std::string html = render(full(kHostile));
  CHECK(unbalanced(html) == "");
  CHECK(html.find("<script") == std::string::npos);
  CHECK(html.find("&lt;script&gt;&quot;&#39;&amp;&lt;/section&gt;") != std::string::npos);
}

TEST_CASE("the same report gives the same bytes") { CHECK(render(full("x")) == render(full("x"))); }

TEST_CASE("figures appear with their units, predicted beside measured") {
  const std::string html = render(full("plain"));
  CHECK(html.find("validation loss") != std::string::npos);
  CHECK(html.find("<td>peak memory, rank 0</td><td class=\"number\">3.00 MiB</td><td "
                  "class=\"number\">2.00 MiB</td><td class=\"number\">-33 %</td>") !=
        std::string::npos);  // among what left the prediction
  CHECK(html.find("<td class=\"number\">39.4 %</td>") != std::string::npos);
  CHECK(html.find("<span>step time</span><b>1.25 s</b><small>predicted 1.50 s</small>") !=
        std::string::npos);
  CHECK(html.find("<tr><td>step time</td><td class=\"number\">1.50 s</td><td class=\"number\">1.25 "
                  "s</td><td class=\"number\">+20.0 %</td><td class=\"number\"></td></tr>") !=
        std::string::npos);
  CHECK(html.find("<td class=\"large-error number\">-50.0 %</td>") != std::string::npos);
  CHECK(html.find("<span>loss</span><b>3.250</b><small>from 5.545, step 1 to 2</small>") !=
        std::string::npos);
  CHECK(html.find("<tr class=\"chosen\"><td class=\"number\">1</td>") != std::string::npos);
}

TEST_CASE("a limit far beyond the bars is told in words instead of squeezing them") {
  Report report = full("plain");
  CHECK(render(report).find("class=\"limit\"") != std::string::npos);
  report.comparison->ranks[0].limit_bytes = int64_t{64} << 30;
  const std::string html = render(report);
  CHECK(html.find("class=\"limit\"") == std::string::npos);
  CHECK(html.find("The limit of a rank, 64.00 GiB, lies far to the right") != std::string::npos);
}

TEST_CASE("a rate stands in the row of its weight and the column of its rows") {
  const std::string html = render(full("plain"));
  // Rates by (m, n, k): (1, 128, 256) 1 GFLOP/s, (1, 128, 512) 2, (64, 128, 256) 3, (64, 128, 512)
  // 4.
  CHECK(html.find("<td class=\"strong number\">128 × 512</td><td class=\"rate-2 number\">2.00 "
                  "GFLOP/s</td><td class=\"rate-4 number\">4.00 GFLOP/s</td>") !=
        std::string::npos);
}

TEST_CASE("an expert's shade follows its share, from none over even to twice that") {
  const std::string html = render(full("plain"));
  // 0, 10, 30 of 40 rows on 3 experts: 0, 0.75 and 2.25 of an even share.
  CHECK(html.find("<rect class=\"heat-0\" x=\"84\"") != std::string::npos);
  CHECK(html.find("<title>layer 0 · expert 1: 10 rows, 0.75 of an even share</title>") !=
        std::string::npos);
  CHECK(html.find("<title>layer 0 · expert 2: 30 rows, 2.25 of an even share</title>") !=
        std::string::npos);
  CHECK(html.find("busiest × 2.25") != std::string::npos);
}
