#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/data/build_dataset.h>
#include <piper/data/indexed_dataset.h>
#include <tests/test_folder.h>

namespace piper::data {
namespace {

namespace fs = std::filesystem;

// The documents of a dataset.
std::vector<std::vector<int64_t>> documents(const fs::path& prefix) {
  const IndexedDataset dataset(prefix);
  std::vector<std::vector<int64_t>> all;
  for (int64_t i = 0; i < dataset.num_documents(); ++i) {
    const TokenRange range = dataset.document(i);
    all.emplace_back(static_cast<size_t>(range.end - range.begin));
    dataset.read(range.begin, all.back());
  }
  return all;
}

using Documents = std::vector<std::vector<int64_t>>;

TEST_CASE("a text file is one document of bytes, a JSONL file one a line, empty ones left out") {
  const testing::TestFolder folder;
  DatasetRequest request{
      .inputs = {folder.write("a.txt", "a\xff"), folder.write("none.txt", ""),
                 folder.write("b.jsonl",
                              "{\"id\": 1, \"text\": \"\\u00e9\"}\r\n{\"text\": \"\"}\n\n"
                              "{\"text\": \"z\\n\"}")},
      .prefix = folder.path() / "out"};
  const DatasetSummary summary = build_dataset(request);
  CHECK(documents(request.prefix) == Documents{{97, 255}, {0xc3, 0xa9}, {'z', '\n'}});
  CHECK(summary.documents == 3);
  CHECK(summary.empty_documents == 2);
  CHECK(summary.tokens == 6);
  CHECK(summary.input_bytes == 2 + 58);
  CHECK(summary.type == TokenType::kUint8);
  CHECK(summary.vocabulary == 256);

  request.append_end_of_document = request.overwrite = true;
  CHECK(build_dataset(request).type == TokenType::kUint16);
  CHECK(documents(request.prefix) ==
        Documents{{97, 255, 256}, {0xc3, 0xa9, 256}, {'z', '\n', 256}});
}

TEST_CASE(
    "arrays of integers are the tokens themselves; the vocabulary picks how they are stored") {
  const testing::TestFolder folder;
  DatasetRequest request{
      .inputs = {folder.write("t.json", "{\"tokens\": [1, 70000]}\n{\"tokens\": []}\n")},
      .prefix = folder.path() / "out",
      .jsonl_key = "tokens"};
  CHECK(build_dataset(request).type == TokenType::kInt32);
  CHECK(documents(request.prefix) == Documents{{1, 70000}});
  request.overwrite = true;
  request.inputs = {folder.write("u.json", "{\"tokens\": [1, 50256]}")};
  request.vocabulary = 50257;
  CHECK(build_dataset(request).type == TokenType::kUint16);
  CHECK(documents(request.prefix) == Documents{{1, 50256}});
}

TEST_CASE("lines are found again where blocks of the file meet") {
  const testing::TestFolder folder;
  std::string lines;
  Documents expected;
  for (int64_t i = 0; lines.size() < 3 << 20; ++i) {
    expected.emplace_back(static_cast<size_t>(i % 3000 + 1), i % 50000);
    lines += "{\"tokens\":[";
    for (size_t k = 0; k < expected.back().size(); ++k)
      lines += (k == 0 ? "" : ",") + std::to_string(expected.back()[k]);
    lines += "]}\n";
  }
  int64_t last_progress = 0;
  const DatasetRequest request{.inputs = {folder.write("t.jsonl", lines)},
                               .prefix = folder.path() / "out",
                               .jsonl_key = "tokens",
                               .progress = [&](int64_t done) { last_progress = done; }};
  build_dataset(request);
  CHECK(documents(request.prefix) == expected);
  CHECK(last_progress == static_cast<int64_t>(lines.size()));
}

TEST_CASE("what is wrong is named with file and line, and nothing is left behind") {
  const testing::TestFolder folder;
  const auto refusal = [&](const std::string& lines, const DatasetRequest& base = {}) {
    DatasetRequest request = base;
    request.inputs = {folder.write("x.jsonl", lines)};
    request.prefix = folder.path() / "out";
    try {
      build_dataset(request);
    } catch (const InvalidInput& error) {
      CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
      const std::string file = (folder.path() / "x.jsonl").string();
      const std::string line = error.what();
      return line.starts_with(file) ? line.substr(file.size()) : line;
    }
    return std::string("accepted");
  };
  const std::string good = "{\"text\": \"ab\"}\n";
  CHECK(refusal(good + "{\"text\": 5}\n") ==
        ":2: 'text' is 5; allowed: a text or an array of integers");
  CHECK(refusal(good + "{\"txt\": \"a\"}\n") ==
        ":2: 'text' is missing; allowed: a text or an array of integers");
  CHECK(refusal(good + "[1]\n") == ":2: is [1]; allowed: an object");
  CHECK(refusal(good + good + "{\"text\": \"a").starts_with(":3: is not valid JSON at byte "));
  CHECK(refusal("{\"text\": \"a\", \"text\": \"b\"}") == ":1: key 'text' appears twice");
  CHECK(refusal("{\"text\": \"\xff\"}").starts_with(":1: is not valid JSON at byte "));
  CHECK(refusal(good + "{\"text\": [1]}\n") ==
        ":2: holds an array of integers; allowed: text, as in what came before");
  CHECK(refusal("{\"text\": [1, -1]}") ==
        ":1: 'text[1]' is -1; allowed: an integer from 0 to 2147483647");
  CHECK(refusal("{\"text\": [1.0]}") ==
        ":1: 'text[0]' is 1.0; allowed: an integer from 0 to 2147483647");
  CHECK(refusal("{\"text\": [5]}", {.vocabulary = 5}) ==
        ":1: 'text[0]' is 5; allowed: an integer from 0 to 4");
  CHECK(
      refusal(good, {.vocabulary = 300}) ==
      ":1: holds text, whose vocabulary is 256; a vocabulary is given for arrays of integers only");
  CHECK(refusal("{\"text\": [5]}", {.append_end_of_document = true}) ==
        ":1: holds an array of integers; its end-of-document token must be among them, none is "
        "appended");
  CHECK(refusal("\n\n") == ": holds no token; nothing is written");
  CHECK(refusal(good) == "accepted");
  const std::string index = (folder.path() / "out.idx").string();
  DatasetRequest again{.inputs = {folder.path() / "x.jsonl"}, .prefix = folder.path() / "out"};
  CHECK_THROWS_WITH_AS(build_dataset(again),
                       (index + ": is there already; name another, or allow to overwrite").c_str(),
                       InvalidInput);
  again.inputs = {folder.path() / "absent"};
  again.overwrite = true;
  CHECK_THROWS_AS(build_dataset(again), IoError);
  CHECK(IndexedDataset(again.prefix).num_tokens() == 2);
}

}  // namespace
}  // namespace piper::data
