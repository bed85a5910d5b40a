#include <doctest/doctest.h>
#include <piper/base/json.h>
#include <piper/report/metric_charts.h>
#include <piper/report/metrics.h>

#include <cmath>
#include <set>

namespace piper::report {
namespace {

StepMetrics sample(int64_t step) {
  static const StepOutcome outcome{.loss = 3.41229,
                                   .auxiliary_loss = 0.01,
                                   .z_loss = 0.002,
                                   .grad_norm = 1.2345,
                                   .learning_rate = 1e-3,
                                   .load_imbalance = 1.116};
  return metrics_of({.number = step,
                     .outcome = outcome,
                     .seconds = 0.5,
                     .tokens = 2048,
                     .mfu = 0.2314,
                     .peak_bytes = int64_t{512} << 20});
}

std::string console_line(const StepMetrics& metrics) {
  REQUIRE(console_lines(metrics).size() == 1);
  return console_lines(metrics)[0];
}

}  // namespace

TEST_CASE("a metric has a name and a tag of its own, and the texts name metrics that there are") {
  std::set<std::string_view> names{"step", ""}, tags;
  for (const Metric& metric : kMetrics) {
    CAPTURE(metric.name);
    CHECK(names.insert(metric.name).second);
    CHECK((metric.tensorboard.empty() || tags.insert(metric.tensorboard).second));
    CHECK((metric.chart == MetricChart::kNone) == metric.label.empty());
  }
  for (const Metric& metric : kMetrics)
    for (size_t open = 0; (open = metric.console.find('{', open)) != std::string_view::npos;) {
      const size_t close = metric.console.find('}', open);
      REQUIRE(close != std::string_view::npos);
      CHECK(names.contains(metric.console.substr(open + 1, close - open - 1)));
      open = close;
    }
}

TEST_CASE("the console line is stable") {
  CHECK(console_line(sample(12)) ==
        "step 12 | loss 3.4123 | grad norm 1.23 | 4096 tokens/s | MFU 23.1 % | peak 512.0 MiB | "
        "imbalance 1.12");
  StepMetrics limited = sample(12);
  limited["dropped_fraction"] = 0.0314;
  CHECK(console_line(limited).ends_with(" | imbalance 1.12 | dropped 3.1 %"));
  StepMetrics with_modules = sample(12);
  with_modules["mtp_loss"] = 4.25;
  CHECK(console_line(with_modules).starts_with("step 12 | loss 3.4123 | mtp loss 4.2500 | grad "));
  StepMetrics bad = sample(13);
  bad["loss"] = std::nan("");
  bad["skipped"] = true;
  CHECK(console_line(bad).starts_with("step 13 | loss nan | "));
  CHECK(console_line(bad).ends_with(" | skipped: not finite"));
  StepMetrics unknown_peak = sample(1);
  unknown_peak["mfu"] = std::nan("");
  CHECK(console_line(unknown_peak).find(" | MFU - | ") != std::string::npos);
}

TEST_CASE("a run that rebalances says what moved; a validation loss has a line of its own") {
  const StepOutcome outcome{.skipped = true};
  Migrated moved{.rank_imbalance = 1.314};
  const auto lines = [&] {
    return console_lines(metrics_of({.number = 4,
                                     .outcome = outcome,
                                     .seconds = 1,
                                     .validation_loss = 2.5,
                                     .migrated = moved}));
  };
  CHECK(lines()[0].ends_with(" | busiest rank 1.31 | skipped: not finite"));
  moved.experts = 4, moved.bytes = 3 << 19, moved.seconds = 2.1e-3;
  REQUIRE(lines().size() == 2);
  CHECK(lines()[0].ends_with(
      " | busiest rank 1.31 | moved 4 experts, 1.50 MiB in 2.10 ms | skipped: not finite"));
  CHECK(lines()[1] == "step 4 | validation loss 2.5000");
}

TEST_CASE(
    "a line holds the keys in order; what is not finite is null; what is absent is left out") {
  StepMetrics metrics = sample(1);
  metrics["grad_norm"] = INFINITY;
  metrics["validation_loss"] = 2.5;
  CHECK(
      to_json(metrics).dump() ==
      R"({"step":1,"loss":3.41229,"auxiliary_loss":0.01,"z_loss":0.002,"grad_norm":null,"learning_rate":0.001,)"
      R"("step_seconds":0.5,"tokens_per_second":4096.0,"mfu":0.2314,"peak_bytes":536870912,"load_imbalance":1.116,)"
      R"("dropped_fraction":0.0,"skipped":false,"validation_loss":2.5})");
  metrics["dropped_fraction"] = 0.25;
  CHECK(to_json(metrics)["dropped_fraction"] == 0.25);
}

TEST_CASE("TensorBoard gets what has a tag and is there") {
  using Scalars = std::vector<std::pair<std::string, double>>;
  StepMetrics metrics{.step = 1};
  CHECK(tensorboard_scalars(metrics).empty());
  metrics["validation_loss"] = 2.5;
  metrics["dropped_fraction"] = 0.5;
  metrics["host_waits"] = 3;
  CHECK(tensorboard_scalars(metrics) ==
        Scalars{{"experts/dropped_fraction", 0.5}, {"validation/loss", 2.5}});
}

TEST_CASE("every metric reads back as written") {
  StepMetrics metrics{.step = 3};
  for (size_t row = 0; row < kMetrics.size(); ++row)
    metrics.values[row] = kMetrics[row].unit == Unit::kFlag ? 1.0 : static_cast<double>(row + 1);
  const std::vector<StepMetrics> read = parse_metrics(to_json(metrics).dump() + "\n", "m");
  REQUIRE(read.size() == 1);
  CHECK(read[0].step == 3);
  CHECK(read[0].values == metrics.values);
}

TEST_CASE("the page draws every metric that its row gives a chart, where it was recorded") {
  StepMetrics first{.step = 1}, second{.step = 2};
  for (size_t row = 0; row < kMetrics.size(); ++row)
    first.values[row] = 1, second.values[row] = 0.5;
  std::string page;
  for (const MetricChart chart : {MetricChart::kLoss, MetricChart::kOfItsOwn,
                                  MetricChart::kImbalance, MetricChart::kDropped}) {
    CHECK(metric_charts(chart, {}) == "");
    page += metric_charts(chart, {first, second});
  }
  size_t curves = 0, drawn = 0;
  for (const Metric& metric : kMetrics) drawn += metric.chart != MetricChart::kNone;
  for (size_t at = 0; (at = page.find("class=\"curve", at)) != std::string::npos; ++at) ++curves;
  CHECK(curves == drawn);
  CHECK(page.find("<h3>Busiest expert and busiest rank, in even shares, over the steps</h3>") !=
        std::string::npos);
  CHECK(page.find("<h3>Learning rate, over the steps</h3>") != std::string::npos);
  CHECK(page.find("Loss over 2 steps") != std::string::npos);
}

TEST_CASE("a chart of dropped tokens is left out where none was dropped") {
  StepMetrics step{.step = 1};
  step["dropped_fraction"] = 0;
  CHECK(metric_charts(MetricChart::kDropped, {step}) == "");
  step["dropped_fraction"] = 0.5;
  CHECK(metric_charts(MetricChart::kDropped, {step}).find("experts&#39; capacity, %") !=
        std::string::npos);
}

}  // namespace piper::report
