#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/train/metrics.h>
#include <piper/train/test_folder.h>

#include <algorithm>
#include <cmath>

namespace piper::train {
namespace {

StepMetrics sample(int64_t step) {
  return {.step = step,
          .loss = 3.41229,
          .auxiliary_loss = 0.01,
          .z_loss = 0.002,
          .grad_norm = 1.2345,
          .learning_rate = 1e-3,
          .step_seconds = 0.5,
          .tokens_per_second = 4567.2,
          .mfu = 0.2314,
          .peak_bytes = int64_t{512} << 20,
          .load_imbalance = 1.116};
}

TEST_CASE("the console line is stable") {
  CHECK(console_line(sample(12)) ==
        "step 12 | loss 3.4123 | grad norm 1.23 | 4567 tokens/s | MFU 23.1 % | peak 512.0 MiB | "
        "imbalance 1.12");
  StepMetrics limited = sample(12);
  limited.dropped_fraction = 0.0314;
  CHECK(console_line(limited).ends_with(" | imbalance 1.12 | dropped 3.1 %"));
  StepMetrics with_modules = sample(12);
  with_modules.extra = {{"mtp_loss", 4.25}};
  CHECK(console_line(with_modules).starts_with("step 12 | loss 3.4123 | mtp loss 4.2500 | grad "));
  StepMetrics bad = sample(13);
  bad.loss = std::nan("");
  bad.skipped = true;
  CHECK(console_line(bad).starts_with("step 13 | loss nan | "));
  CHECK(console_line(bad).ends_with(" | skipped: not finite"));
}

TEST_CASE("a line holds the keys in order; what is not finite is null; extra keys follow") {
  StepMetrics metrics = sample(1);
  metrics.grad_norm = INFINITY;
  metrics.extra = {{"validation_loss", 2.5}};
  CHECK(
      to_json(metrics).dump() ==
      R"({"step":1,"loss":3.41229,"auxiliary_loss":0.01,"z_loss":0.002,"grad_norm":null,"learning_rate":0.001,)"
      R"("step_seconds":0.5,"tokens_per_second":4567.2,"mfu":0.2314,"peak_bytes":536870912,"load_imbalance":1.116,)"
      R"("dropped_fraction":0.0,"skipped":false,"validation_loss":2.5})");
  metrics.dropped_fraction = 0.25;
  CHECK(to_json(metrics)["dropped_fraction"] == 0.25);
}

TEST_CASE(
    "resuming keeps the lines up to the checkpoint's step and drops the rest and a torn line") {
  const TestFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  {
    MetricsWriter writer(path, 0);
    for (int64_t step = 1; step <= 5; ++step) writer.write(sample(step));
    const std::string text = read_text_file(path);  // each line is there while the writer is open
    CHECK(std::count(text.begin(), text.end(), '\n') == 5);
  }
  std::ofstream(path, std::ios::app) << R"({"step":6,"lo)";
  { MetricsWriter(path, 3).write(sample(4)); }
  std::vector<int64_t> steps;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);)
    steps.push_back(parse_json(line, "line").at("step").get<int64_t>());
  CHECK(steps == std::vector<int64_t>{1, 2, 3, 4});
  { MetricsWriter(path, 0); }
  CHECK(std::filesystem::file_size(path) == 0);
}

TEST_CASE("a metrics file that is something else is not thrown away") {
  const TestFolder folder;
  const auto path = folder.write("metrics.jsonl", "{\"step\": 1}\nmy notes\n");
  CHECK_THROWS_AS(MetricsWriter(path, 1), InvalidInput);
  CHECK(read_text_file(path) == "{\"step\": 1}\nmy notes\n");
  CHECK_THROWS_AS(MetricsWriter(folder.path() / "absent" / "metrics.jsonl", 0), IoError);
}

}  // namespace
}  // namespace piper::train
