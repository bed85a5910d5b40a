#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/train/metrics.h>
#include <tests/test_folder.h>

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
  const testing::TestFolder folder;
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
  const testing::TestFolder folder;
  const auto path = folder.write("metrics.jsonl", "{\"step\": 1}\nmy notes\n");
  {
    const MetricsWriter writer(path, 1);
    REQUIRE(writer.notes().size() == 1);
    CHECK(writer.notes()[0].starts_with(path.string() + ": line 2 is damaged: "));
    CHECK(writer.notes()[0].ends_with(
        "; from there on 9 bytes were cut off and are in metrics.jsonl.damaged"));
  }
  CHECK(read_text_file(path) == "{\"step\": 1}\n");
  CHECK(read_text_file(path.string() + ".damaged") == "my notes\n");
  CHECK_THROWS_AS(MetricsWriter(folder.path() / "absent" / "metrics.jsonl", 0), IoError);
}

std::string lines(int64_t first, int64_t last) {
  std::string text;
  for (int64_t step = first; step <= last; ++step) text += to_json(sample(step)).dump() + "\n";
  return text;
}

TEST_CASE("a file that is cut anywhere keeps its whole lines; the torn one is kept beside") {
  const std::string text = lines(1, 4);
  for (size_t size = 0; size <= text.size(); ++size) {
    CAPTURE(size);
    const std::string cut = text.substr(0, size);
    const size_t whole = cut.rfind('\n') == std::string::npos ? 0 : cut.rfind('\n') + 1;
    const testing::TestFolder folder;
    const auto path = folder.write("metrics.jsonl", cut);
    folder.write("metrics.jsonl.damaged", "of an earlier crash");
    const MetricsWriter writer(path, 4);
    CHECK(read_text_file(path) == text.substr(0, whole));
    CHECK(read_text_file(path.string() + ".damaged") == "of an earlier crash");
    const std::filesystem::path beside = path.string() + ".damaged-2";
    REQUIRE(std::filesystem::exists(beside) == (whole < size));
    if (whole < size) CHECK(read_text_file(beside) == cut.substr(whole));
    const bool all_there = whole == text.size();
    CHECK(writer.notes().size() == (whole < size ? 1 : 0) + (all_there ? 0 : 1));
    if (!all_there)
      CHECK(writer.notes().back() ==
            path.string() + ": steps " +
                std::to_string(1 + std::count(cut.begin(), cut.end(), '\n')) +
                " to 4 are not in it");
  }
}

TEST_CASE("what a power cut or a bad disk leaves ends the sound part where it begins") {
  const std::string good = lines(1, 3);
  const std::string line3 = lines(3, 3), line5 = lines(5, 5);
  struct Case {
    std::string tail, said;
  };
  for (const Case& c : {
           Case{std::string(300, '\0'), "it was never finished"},
           Case{std::string(300, '\0') + "\n" + lines(4, 5), "line 4 is damaged"},
           Case{"\n", "is empty"},
           Case{"\xff\xfe\x80 binary \x01\n", "line 4 is damaged"},
           Case{"[4]\n", "line 4 is damaged"},
           Case{"{\"loss\":1}\n", "'step' is missing"},
           Case{"{\"step\":0}\n", "'step' is 0"},
           Case{"{\"step\":4.5}\n", "'step' is 4.5"},
           Case{line3, "its step is 3 after 3"},
           Case{lines(1, 2), "its step is 1 after 3"},
           Case{"{\"step\":9}\n" + lines(5, 6), "its step is 9 between 3 and 5"},
       }) {
    const files::SoundPart part = sound_metrics(good + c.tail, 100);
    CAPTURE(part.damage);
    CHECK(part.sound == good.size());
    CHECK(part.kept == good.size());
    CHECK(part.last_step == 3);
    CHECK(part.damage.find(c.said) != std::string::npos);
  }
  // Steps that were cut off once are missing ever after, and no damage.
  CHECK(sound_metrics(good + line5 + lines(6, 7), 100).damage.empty());
  CHECK(sound_metrics(good + line5, 100).damage.empty());
  const files::SoundPart until = sound_metrics(good + line5, 2);
  CHECK(until.last_step == 2);
  CHECK(until.kept == lines(1, 2).size());
  CHECK(until.sound == (good + line5).size());
}

TEST_CASE("any flipped bit leaves whole lines, and loses no byte") {
  const std::string text = lines(1, 3);
  for (size_t at = 0; at < text.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string hurt = text;
      hurt[at] = static_cast<char>(hurt[at] ^ (1 << bit));
      const files::SoundPart part = sound_metrics(hurt, 3);
      CHECK(part.kept <= part.sound);
      CHECK(part.damage.empty() == (part.sound == hurt.size()));
      CHECK((part.kept == 0 || hurt[part.kept - 1] == '\n'));
      CHECK(sound_metrics(hurt.substr(0, part.sound), 3).damage.empty());
    }
}

}  // namespace
}  // namespace piper::train
