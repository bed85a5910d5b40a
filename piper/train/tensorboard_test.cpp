#include <doctest/doctest.h>
#include <piper/base/json.h>
#include <piper/train/tensorboard.h>
#include <piper/train/test_folder.h>

#include <cstring>

namespace piper::train {

TEST_CASE("CRC-32C has the published check values (RFC 3720, appendix B.4)") {
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43u);
}

TEST_CASE("records are framed: length, masked CRC, event, masked CRC") {
  const TestFolder folder;
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

}  // namespace piper::train
