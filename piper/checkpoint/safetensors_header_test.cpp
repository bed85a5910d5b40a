#include <doctest/doctest.h>
#include <fmt/format.h>
#include <piper/checkpoint/safetensors_header.h>
#include <tests/test_peak_memory.h>

#include <cstring>
#include <ctime>
#include <fstream>
#include <random>

namespace piper::checkpoint {
namespace {

struct Failure {
  int64_t offset = -1;
  std::string tensor, what;
  size_t num_lines = 0;
};

Failure header_failure(std::string_view text, int64_t data_bytes) {
  try {
    parse_header(text, data_bytes, "f");
  } catch (const SafetensorsError& error) {
    CHECK(error.file() == "f");
    CHECK(std::string(error.what()).starts_with(fmt::format("f: byte {}: ", error.offset())));
    return {error.offset(), error.tensor(), error.what(), error.problems().size()};
  }
  return {};
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype,
                     shape, offsets);
}

std::string braces(const std::string& inner) { return fmt::format("{{{}}}", inner); }

const std::string kA = entry("a", "F32", "2,3", "0,24");
const std::string kB = entry("b", "BF16", "4", "24,32");

TEST_CASE("a good header is read: types, shapes, order of bytes, metadata, padding") {
  const std::string text =
      fmt::format("{{\"__metadata__\":{{\"format\":\"pt\"}},{},{},{},{}}}   ", kB, kA,
                  entry("s", "I64", "", "32,40"), entry("none", "U8", "0,7", "40,40"));
  const SafetensorsHeader header = parse_header(text, 40, "f");
  REQUIRE(header.tensors.size() == 4);
  CHECK(header.tensors[0].name == "a");
  CHECK(header.tensors[0].shape == std::vector<int64_t>{2, 3});
  CHECK(header.tensors[1].dtype == DType::kBF16);
  CHECK(header.tensors[2].shape.empty());
  CHECK(header.tensors[3].name == "none");
  CHECK(header.metadata.at("format") == "pt");
  CHECK(header.data_begin == 8 + static_cast<int64_t>(text.size()));
  CHECK(parse_header("{}", 0, "f").tensors.empty());
}

TEST_CASE("what is written is read again") {
  const std::vector<TensorEntry> tensors = {{"x\"\n\u00e9", DType::kF64, {2}, 0, 16},
                                            {"y", DType::kI32, {}, 16, 20}};
  const std::string bytes = format_header(tensors, {{"k", "v\\"}});
  CHECK(bytes.size() % 8 == 0);
  const auto size = static_cast<int64_t>(bytes.size());
  CHECK(parse_header_length(bytes, size + 20, "f") == size - 8);
  const SafetensorsHeader header = parse_header(std::string_view(bytes).substr(8), 20, "f");
  CHECK(header.tensors[0].name == tensors[0].name);
  CHECK(header.tensors[1].end == 20);
  CHECK(header.metadata.at("k") == "v\\");
}

TEST_CASE("every malformed header is a typed error with file, byte and tensor") {
  struct Row {
    std::string text;
    int64_t data_bytes;
    std::string tensor, what;
  };
  const std::string wrong = "is not a known key; allowed: dtype, shape, data_offsets";
  const std::vector<Row> rows = {
      {"", 0, "", "does not begin with '{'"},
      {" {}", 0, "", "does not begin with '{'"},
      {"[]", 0, "", "does not begin with '{'"},
      {"{", 0, "", "not valid JSON"},
      {"{}x", 0, "", "not valid JSON"},
      {"{}{}", 0, "", "not valid JSON"},
      {"{\"a\xff\":1}", 0, "", "not valid JSON"},
      {fmt::format("{{{}", kA), 24, "", "not valid JSON"},
      {std::string("{\0}", 3), 0, "", "not valid JSON"},
      {"{\"a\":1e400}", 0, "", "not valid JSON"},
      {"{\"a\":1}", 0, "", "\"a\" is 1; allowed: an object"},
      {"{\"a\":[]}", 0, "", "\"a\" is an array; allowed: an object"},
      {"{\"a\":null}", 0, "", "\"a\" is null"},
      {"{\"a\":{}}", 0, "a", "'dtype' is missing"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "a", "'data_offsets' is missing"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "a", "'shape' is missing"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"size":4}})", 4, "a", wrong},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "a",
       "'dtype' appears twice"},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, "a",
       "'dtype' is 7; allowed: a string"},
      {R"({"a":{"dtype":{},"shape":[1],"data_offsets":[0,4]}})", 4, "a",
       "'dtype' is an object; allowed: a string"},
      {R"({"a":{"dtype":"F32","shape":"1","data_offsets":[0,4]}})", 4, "a",
       "'shape' is \"1\"; allowed: an array"},
      {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "a",
       "'shape' holds an array; allowed: integers"},
      {braces(entry("a", "F8_E4M3", "4", "0,4")), 4, "a",
       "'dtype' is \"F8_E4M3\"; allowed: F64, F32"},
      {braces(entry("a", "F32", "-1", "0,4")), 4, "a",
       "'shape' holds -1; allowed: integers from 0"},
      {braces(entry("a", "F32", "3.7", "0,4")), 4, "a", "'shape' holds 3.7"},
      {braces(entry("a", "F32", "9223372036854775808", "0,4")), 4, "a",
       "'shape' holds 9223372036854775808"},
      {braces(entry("a", "F32", "99999999999999999999", "0,4")), 4, "a",
       "'shape' holds 99999999999999999999"},
      {braces(entry("a", "F32", "4611686018427387904,4", "0,4")), 4, "a", "takes more than 2^63"},
      {braces(entry("a", "F32", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "0,4")), 4, "a",
       "more than 16 numbers"},
      {braces(entry("a", "F32", "1", "0")), 4, "a", "'data_offsets' has 1 numbers; allowed: 2"},
      {braces(entry("a", "F32", "1", "0,4,8")), 8, "a", "'data_offsets' has 3 numbers; allowed: 2"},
      {braces(entry("a", "F32", "1", "4,0")), 4, "a", "end before they begin"},
      {braces(entry("a", "F32", "1", "-4,0")), 4, "a", "'data_offsets' holds -4"},
      {braces(entry("a", "F32", "1", "0,4.0")), 4, "a", "'data_offsets' holds 4.0"},
      {braces(entry("a", "F32", "1", "0,9223372036854775808")), 4, "a",
       "'data_offsets' holds 9223372036854775808"},
      {braces(entry("a", "F32", "1", "8,12")), 4, "a",
       "leave the file, whose data are 4 bytes long"},
      {braces(entry("a", "F32", "0,4", "0,4")), 4, "a", "hold 4 bytes, but F32 [0, 4] takes 0"},
      {braces(entry("a", "F32", "1", "0,8")), 8, "a", "hold 8 bytes, but F32 [1] takes 4"},
      {braces(entry("a", "F32", "2,3", "0,24")), 23, "a",
       "leave the file, whose data are 23 bytes long"},
      {braces(kA + "," + kA), 24, "", "\"a\" appears twice"},
      {braces(kA + "," + entry("b", "F32", "1", "20,24")), 24, "b",
       "overlap the tensor before, which ends at 24"},
      {braces(kA + "," + entry("b", "F32", "1", "28,32")), 32, "b",
       "leave a hole after the tensor before"},
      {braces(entry("a", "F32", "1", "4,8")), 8, "a",
       "leave a hole after the tensor before, which ends at 0"},
      {braces(kA), 25, "", "1 bytes follow the last tensor"},
      {"{}", 1, "", "1 bytes follow the last tensor"},
      {R"({"__metadata__":{"a":1}})", 0, "", "__metadata__ \"a\" is 1; allowed: a string"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0, "", "appears twice"},
      {R"({"__metadata__":[]})", 0, "", "is an array; allowed: an object"},
      {R"({"__metadata__":{"a":{}}})", 0, "", "is an object; allowed: a string"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const Failure failure = header_failure(row.text, row.data_bytes);
    CHECK(failure.offset >= 8);
    CHECK(failure.offset <= 8 + static_cast<int64_t>(row.text.size()) + row.data_bytes);
    CHECK(failure.tensor == row.tensor);
    CAPTURE(failure.what);
    CHECK(failure.what.find(row.what) != std::string::npos);
    CHECK(failure.what.find('\n') == std::string::npos);
  }
}

TEST_CASE("all tensors that disagree with their offsets are listed, the first one typed") {
  const Failure failure = header_failure(
      braces(entry("a", "F32", "3", "0,8") + "," + entry("b", "F32", "9", "8,12")), 12);
  CHECK(failure.num_lines == 2);
  CHECK(failure.tensor == "a");
}

TEST_CASE("an impossible length of the header is refused before anything is read") {
  const auto bytes_of = [](uint64_t length) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes;
  };
  CHECK(parse_header_length(bytes_of(92), 100, "f") == 92);
  CHECK_THROWS_WITH_AS(
      parse_header_length("abc", 3, "f"),
      "f: byte 0: the file is 3 bytes long; a safetensors file begins with 8 bytes of length",
      SafetensorsError);
  CHECK_THROWS_WITH_AS(parse_header_length(bytes_of(93), 100, "f"),
                       "f: byte 0: the header's length is 93, but only 92 bytes follow",
                       SafetensorsError);
  for (const uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{100'000'001}})
    CHECK_THROWS_WITH_AS(
        parse_header_length(bytes_of(length), 1000, "f"),
        fmt::format("f: byte 0: the header's length is {}; allowed: at most 100000000", length)
            .c_str(),
        SafetensorsError);
}

TEST_CASE("pickles and TorchScript are refused with how to convert them") {
  for (const std::string bytes : {"PK\x03\x04.......", "\x80\x02}.......", "\x80\x03}.......",
                                  "\x80\x04\x95......", "\x80\x05\x95......"}) {
    CAPTURE(bytes);
    CHECK_THROWS_WITH_AS(
        parse_header_length(bytes, 1000, "f"),
        "f: byte 0: is a pickle or TorchScript file, which can run code when read; convert it: "
        "load it with torch.load(..., weights_only=True) and write it with "
        "safetensors.torch.save_file",
        SafetensorsError);
  }
}

TEST_CASE("every length of a header is read, those that look like a pickle's first bytes, too") {
  const auto bytes_of = [](uint64_t length) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes;
  };
  REQUIRE(bytes_of(640).starts_with("\x80\x02"));
  REQUIRE(bytes_of(0x04034b50).starts_with("PK\x03\x04"));
  for (int64_t length = 8; length < 200'000; length += 8)
    REQUIRE(parse_header_length(bytes_of(static_cast<uint64_t>(length)), length + 8, "f") ==
            length);
  CHECK(parse_header_length(bytes_of(0x04034b50), 100'000'000, "f") == 0x04034b50);
}

TEST_CASE(
    "hostile headers cost little time and memory: deep nesting, a million tensors, a million "
    "keys") {
  std::string tensors = "{", metadata = "{\"__metadata__\":{";
  for (int i = 0; i < 1'000'000; ++i) {
    if (i < 600'000) tensors += entry(std::to_string(i), "U8", "0", "0,0") + ",";
    metadata += fmt::format("\"{}\":\"\",", i);
  }
  std::string deep = "{\"a\":";
  deep.append(1'000'000, '[');
  std::string shape = "{\"a\":{\"shape\":[0";
  for (int i = 0; i < 10'000'000; ++i) shape += ",0";
  for (const std::string* text : {&tensors, &metadata, &deep, &shape}) {
    testing::reset_peak();
    const int64_t before = testing::peak_kib();
    const std::clock_t start = std::clock();
    CHECK(header_failure(*text, 0).offset > 8);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    const int64_t grown_mib = (testing::peak_kib() - before) / 1024;
    MESSAGE("header of " << text->size() << " bytes: refused after " << seconds
                         << " s of CPU time, peak memory grew by " << grown_mib << " MiB");
    if (testing::kSanitized) continue;
    CHECK(seconds < 1);
    CHECK(grown_mib < 64);  // beside the text itself
  }
}

TEST_CASE("random damage to a header is refused or harmless, never a crash") {
  const std::string good = fmt::format("{{\"__metadata__\":{{\"format\":\"pt\"}},{},{}}}", kA, kB);
  std::mt19937 random(20240601);
  int refused = 0;
  constexpr int kRounds = 20'000;
  for (int round = 0; round < kRounds; ++round) {
    std::string text = good;
    for (uint32_t i = 0, n = 1 + random() % 4; i < n && !text.empty(); ++i) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        case 2:
          text.insert(at, good.substr(random() % good.size(), random() % 16));
          break;
        case 3:
          text[at] = "{}[]:,\"0-9eE"[random() % 12];
          break;
      }
    }
    try {
      const SafetensorsHeader header = parse_header(text, 32, "f");
      int64_t end = 0;  // whatever is accepted tiles the data
      for (const TensorEntry& tensor : header.tensors) {
        REQUIRE(tensor.begin == end);
        end = tensor.end;
      }
      REQUIRE(end == 32);
    } catch (const SafetensorsError&) {
      ++refused;
    }
  }
  CHECK(refused > kRounds / 2);
  CHECK(refused < kRounds);
}

}  // namespace
}  // namespace piper::checkpoint
