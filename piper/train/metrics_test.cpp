#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/train/metrics.h>
#include <tests/test_folder.h>

#include <algorithm>

namespace piper::train {
namespace {

report::StepMetrics sample(int64_t step) {
  report::StepMetrics metrics{.step = step};
  metrics["loss"] = 3.41229, metrics["step_seconds"] = 0.5, metrics["peak_bytes"] = 1 << 29;
  return metrics;
}

TEST_CASE(
    "resuming keeps the lines up to the checkpoint's step and drops the rest and a torn line") {
  const piper::testing::TestFolder folder;
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
  const piper::testing::TestFolder folder;
  const auto path = folder.write("metrics.jsonl", "{\"step\": 1}\nmy notes\n");
  {
    const std::vector<std::string> notes = MetricsWriter(path, 1).take_notes();
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].starts_with(path.string() + ": line 2 is damaged: "));
    CHECK(notes[0].ends_with(
        "; from there on 9 bytes were cut off and are in metrics.jsonl.damaged"));
  }
  CHECK(read_text_file(path) == "{\"step\": 1}\n");
  CHECK(read_text_file(path.string() + ".damaged") == "my notes\n");
  CHECK_THROWS_AS(MetricsWriter(folder.path() / "absent" / "metrics.jsonl", 0), IoError);
}

std::string lines(int64_t first, int64_t last) {
  std::string text;
  for (int64_t step = first; step <= last; ++step)
    text += report::to_json(sample(step)).dump() + "\n";
  return text;
}

TEST_CASE("a file that is cut anywhere keeps its whole lines; the torn one is kept beside") {
  const std::string text = lines(1, 4);
  for (size_t size = 0; size <= text.size(); ++size) {
    CAPTURE(size);
    const std::string cut = text.substr(0, size);
    const size_t whole = cut.rfind('\n') == std::string::npos ? 0 : cut.rfind('\n') + 1;
    const piper::testing::TestFolder folder;
    const auto path = folder.write("metrics.jsonl", cut);
    folder.write("metrics.jsonl.damaged", "of an earlier crash");
    const std::vector<std::string> notes = MetricsWriter(path, 4).take_notes();
    CHECK(read_text_file(path) == text.substr(0, whole));
    CHECK(read_text_file(path.string() + ".damaged") == "of an earlier crash");
    const std::filesystem::path beside = path.string() + ".damaged-2";
    REQUIRE(std::filesystem::exists(beside) == (whole < size));
    if (whole < size) CHECK(read_text_file(beside) == cut.substr(whole));
    const bool all_there = whole == text.size();
    CHECK(notes.size() == (whole < size ? 1 : 0) + (all_there ? 0 : 1));
    if (!all_there)
      CHECK(notes.back() == path.string() + ": steps " +
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
