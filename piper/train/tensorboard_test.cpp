#include <doctest/doctest.h>
#include <piper/base/json.h>
#include <piper/train/tensorboard.h>
#include <tests/test_folder.h>

#include <cstring>
#include <string>
#include <vector>

namespace piper::train {

TEST_CASE("CRC-32C has the published check values (RFC 3720, appendix B.4)") {
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43u);
}

TEST_CASE("records are framed: length, masked CRC, event, masked CRC") {
  const piper::testing::TestFolder folder;
  EventWriter writer(folder.path(), 1);
  writer.write(7, 1e9, {{"loss", 2.5}, {"mfu", 0.25}});
  const std::string text = read_text_file(writer.path());
  size_t at = 0;
  int num_records = 0;
  while (at < text.size()) {
    uint64_t size = 0;
    uint32_t of_length = 0, of_event = 0;
    REQUIRE(at + 16 <= text.size());
    std::memcpy(&size, text.data() + at, 8);
    std::memcpy(&of_length, text.data() + at + 8, 4);
    const auto masked = [](uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u; };
    CHECK(of_length == masked(crc32c(text.substr(at, 8))));
    REQUIRE(at + 16 + size <= text.size());
    std::memcpy(&of_event, text.data() + at + 12 + size, 4);
    CHECK(of_event == masked(crc32c(text.substr(at + 12, size))));
    at += 16 + size;
    ++num_records;
  }
  CHECK(at == text.size());
  CHECK(num_records == 2);  // the version, the step
}

namespace {

// An event file of these steps, and where its records end.
std::string events(const piper::testing::TestFolder& folder, int64_t first, int64_t last,
                   std::vector<size_t>* ends = nullptr) {
  EventWriter writer(folder.path() / "made", first);
  const auto note_end = [&] {
    if (ends != nullptr) ends->push_back(std::filesystem::file_size(writer.path()));
  };
  note_end();
  for (int64_t step = first; step <= last; ++step) {
    writer.write(step, 1e9, {{"loss", 2.5}, {"mfu", 0.25}});
    note_end();
  }
  const std::string content = read_text_file(writer.path());
  std::filesystem::remove_all(folder.path() / "made");
  return content;
}

}  // namespace

TEST_CASE("an event file that is cut anywhere keeps its whole records") {
  const piper::testing::TestFolder source;
  std::vector<size_t> ends;
  const std::string content = events(source, 1, 3, &ends);
  for (size_t size = 0; size <= content.size(); ++size) {
    CAPTURE(size);
    size_t whole = 0;
    for (const size_t end : ends) whole = end <= size ? end : whole;
    const files::SoundPart part = sound_events(content.substr(0, size), 3);
    CHECK(part.sound == whole);
    CHECK(part.kept == whole);
    CHECK(part.damage.empty() == (whole == size));
  }
}

TEST_CASE("any flipped bit of an event file is found in its record") {
  const piper::testing::TestFolder source;
  std::vector<size_t> ends;
  const std::string content = events(source, 1, 3, &ends);
  int num_found = 0;
  for (size_t at = 0; at < content.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string hurt = content;
      hurt[at] = static_cast<char>(hurt[at] ^ (1 << bit));
      size_t before = 0;
      for (const size_t end : ends) before = end <= at ? end : before;
      const files::SoundPart part = sound_events(hurt, 3);
      num_found += part.sound == before && !part.damage.empty();
    }
  CHECK(num_found == static_cast<int>(8 * content.size()));
}

TEST_CASE("a run that goes on cuts earlier event files at its first step, and keeps torn ends") {
  const piper::testing::TestFolder folder;
  const std::string first = events(folder, 1, 8), second = events(folder, 6, 9);
  folder.write("t/events.out.tfevents.0000000001.piper", first + "torn");
  folder.write("t/events.out.tfevents.0000000006.piper", second);
  folder.write("t/events.out.tfevents.1700000000.host.1", "of another program");
  EventWriter writer(folder.path() / "t", 6);
  const std::vector<std::string> notes = writer.take_notes();
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].ends_with(
      "from there on 4 bytes were cut off and are in events.0000000001.damaged"));
  CHECK(read_text_file(folder.path() / "t/events.0000000001.damaged") == "torn");
  CHECK(read_text_file(folder.path() / "t/events.out.tfevents.0000000001.piper") ==
        events(folder, 1, 5));
  CHECK(read_text_file(writer.path()) == events(folder, 6, 5));  // no more than the version
  CHECK(read_text_file(folder.path() / "t/events.out.tfevents.1700000000.host.1") ==
        "of another program");
  { const EventWriter fresh(folder.path() / "t", 1); }
  CHECK_FALSE(std::filesystem::exists(folder.path() / "t/events.out.tfevents.0000000006.piper"));
}

}  // namespace piper::train
