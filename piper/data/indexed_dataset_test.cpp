#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/data/indexed_dataset.h>
#include <piper/data/indexed_dataset_writer.h>
#include <tests/test_folder.h>
#include <tests/test_peak_memory.h>

#include <cstring>

namespace piper::data {
namespace {

namespace fs = std::filesystem;

template <class Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// The format written by hand, so that reader and writer are not only held to each other.
struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t code = 8;
  std::vector<int32_t> lengths = {3, 0, 2};
  std::vector<int64_t> pointers = {0, 6, 6};
  std::vector<int64_t> documents = {0, 1, 3};
  std::optional<uint64_t> num_sequences, num_indices;  // default: as many as there are
  std::string more;

  std::string bytes() const {
    std::string bytes = magic;
    put(bytes, version);
    put(bytes, code);
    put<uint64_t>(bytes, num_sequences.value_or(lengths.size()));
    put<uint64_t>(bytes, num_indices.value_or(documents.size()));
    for (const int32_t length : lengths) put(bytes, length);
    for (const int64_t pointer : pointers) put(bytes, pointer);
    for (const int64_t document : documents) put(bytes, document);
    return bytes + more;
  }
};

std::string uint16s(const std::vector<uint16_t>& tokens) {
  std::string bytes;
  for (const uint16_t token : tokens) put(bytes, token);
  return bytes;
}

const std::vector<uint16_t> kTokens = {5, 6, 7, 65535, 9};

// The one line with which a dataset is refused; "" = it is accepted.
std::string refusal(const testing::TestFolder& folder, const std::string& index,
                    const std::string& tokens) {
  folder.write("d.idx", index);
  folder.write("d.bin", tokens);
  try {
    const IndexedDataset dataset(folder.path() / "d");
    return "";
  } catch (const InvalidInput& error) {
    CHECK(error.problems().size() == 1);
    std::string line = error.what();
    CHECK(line.find('\n') == std::string::npos);
    const std::string start = folder.path().string() + "/";
    REQUIRE(line.starts_with(start));
    for (size_t at = line.find(start); at != std::string::npos; at = line.find(start))
      line.erase(at, start.size());
    return line;
  }
}

std::vector<int64_t> read_all(const IndexedDataset& dataset) {
  std::vector<int64_t> tokens(static_cast<size_t>(dataset.num_tokens()));
  dataset.read(0, tokens);
  return tokens;
}

TEST_CASE("a dataset written by hand is read: documents of several, one and empty sequences") {
  const testing::TestFolder folder;
  REQUIRE(refusal(folder, Index().bytes(), uint16s(kTokens)) == "");
  const IndexedDataset dataset(folder.path() / "d");
  CHECK(dataset.type() == TokenType::kUint16);
  CHECK(dataset.num_sequences() == 3);
  CHECK(dataset.num_documents() == 2);
  CHECK(read_all(dataset) == std::vector<int64_t>{5, 6, 7, 65535, 9});
  CHECK(dataset.document(0) == TokenRange{0, 3});
  CHECK(dataset.document(1) == TokenRange{3, 5});
  CHECK(check_tokens(dataset, 0) == 65535);
  // Nothing at all is a dataset, too.
  CHECK(refusal(folder, Index{.lengths = {}, .pointers = {}, .documents = {0}}.bytes(), "") == "");
}

TEST_CASE("what is written is read back, and is byte by byte what the format says") {
  const testing::TestFolder folder;
  IndexedDatasetWriter writer(folder.path() / "w", TokenType::kUint16, 3);
  writer.append(std::vector<int64_t>{5, 6});
  writer.append(std::vector<int64_t>{7});
  writer.end_document();
  writer.end_document();  // an empty one
  writer.append(std::vector<int64_t>{65535, 9, 1, 2});
  CHECK_FALSE(fs::exists(folder.path() / "w.bin"));
  writer.finish();
  const Index expected{
      .lengths = {3, 0, 3, 1}, .pointers = {0, 6, 6, 12}, .documents = {0, 1, 2, 4}};
  CHECK(read_text_file(folder.path() / "w.idx") == expected.bytes());
  CHECK(read_text_file(folder.path() / "w.bin") == uint16s({5, 6, 7, 65535, 9, 1, 2}));
  CHECK(IndexedDataset(folder.path() / "w").document(2) == TokenRange{3, 7});
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);  // no temporary is left
}

TEST_CASE("every token type keeps its smallest and largest token, over many blocks") {
  const testing::TestFolder folder;
  for (const TokenType type : {TokenType::kUint8, TokenType::kInt8, TokenType::kInt16,
                               TokenType::kInt32, TokenType::kInt64, TokenType::kUint16}) {
    CAPTURE(name(type));
    std::vector<int64_t> tokens(300000, 1);
    tokens[0] = largest(type);
    tokens[299999] = 0;
    IndexedDatasetWriter writer(folder.path() / "t", type);
    writer.append(tokens);
    writer.finish();
    const IndexedDataset dataset(folder.path() / "t");
    CHECK(dataset.type() == type);
    CHECK(read_all(dataset) == tokens);
    CHECK(check_tokens(dataset, 0) == largest(type));
    if (type != TokenType::kInt64)
      CHECK_THROWS_AS(IndexedDatasetWriter(folder.path() / "x", type)
                          .append(std::vector<int64_t>{largest(type) + 1}),
                      InvalidInput);
    CHECK_THROWS_AS(
        IndexedDatasetWriter(folder.path() / "x", type).append(std::vector<int64_t>{-1}),
        InvalidInput);
  }
  CHECK(type_for_vocabulary(256) == TokenType::kUint8);
  CHECK(type_for_vocabulary(257) == TokenType::kUint16);
  CHECK(type_for_vocabulary(65499) == TokenType::kUint16);
  CHECK(type_for_vocabulary(65500) == TokenType::kInt32);
}

TEST_CASE("a writer that is not finished leaves nothing, and what was there before stays") {
  const testing::TestFolder folder;
  {
    IndexedDatasetWriter writer(folder.path() / "w", TokenType::kUint8);
    writer.append(std::vector<int64_t>{1, 2});
    writer.finish();
  }
  {
    IndexedDatasetWriter writer(folder.path() / "w", TokenType::kUint8);
    writer.append(std::vector<int64_t>(2 << 20, 3));
  }
  CHECK(IndexedDataset(folder.path() / "w").num_tokens() == 2);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);
  IndexedDatasetWriter writer(folder.path() / "w", TokenType::kUint8);
  writer.append(std::vector<int64_t>{4, 5, 6});
  writer.finish();
  CHECK(IndexedDataset(folder.path() / "w").num_tokens() == 3);
}

TEST_CASE("an index of 10 KB and its tokens cut at any byte, or with a byte more, are refused") {
  const testing::TestFolder folder;
  Index index{.lengths = {}, .pointers = {}, .documents = {0}};
  for (int32_t i = 0; i < 510; ++i) {
    index.pointers.push_back(i == 0 ? 0 : index.pointers.back() + 2 * index.lengths.back());
    index.lengths.push_back(i % 7);
    index.documents.push_back(i + 1);
  }
  const std::string whole = index.bytes();
  const auto num_tokens = static_cast<size_t>(index.pointers.back() / 2 + index.lengths.back());
  const std::string tokens = uint16s(std::vector<uint16_t>(num_tokens, 1));
  REQUIRE(whole.size() == 34 + 510 * 20 + 8);  // 10,242 bytes
  REQUIRE(refusal(folder, whole, tokens) == "");
  int64_t refused = 0;
  for (size_t cut = 0; cut < whole.size(); ++cut)
    refused += refusal(folder, whole.substr(0, cut), tokens).starts_with("d.idx: byte ");
  CHECK(refused == static_cast<int64_t>(whole.size()));
  CHECK(refusal(folder, whole + "x", tokens) ==
        "d.idx: byte 10242: the file goes on to byte 10243; 510 sequences and 510 documents end "
        "here");
  // The same for the tokens.
  REQUIRE(tokens.size() > 3000);
  for (size_t cut = 0; cut < tokens.size(); ++cut)
    CHECK(refusal(folder, whole, tokens.substr(0, cut)).find("d.bin has ") != std::string::npos);
  CHECK(refusal(folder, whole, tokens + "x").starts_with("d.bin: has "));
}

TEST_CASE("every flipped bit of an index is refused, or changes no token") {
  const testing::TestFolder folder;
  const std::string whole = Index().bytes();
  const std::string tokens = uint16s(kTokens);
  int64_t accepted = 0;
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    if (refusal(folder, flipped, tokens) == "") ++accepted;
  }
  // Document 1 starts at sequence 1; only the flips to 0 and to 3 make another dataset that could
  // be meant, of the same tokens.
  CHECK(accepted == 2);
}

TEST_CASE("each field that is wrong is named with its byte and what is allowed") {
  const testing::TestFolder folder;
  const std::string tokens = uint16s(kTokens);
  const auto of = [&](const Index& index) { return refusal(folder, index.bytes(), tokens); };
  CHECK(refusal(folder, "", tokens) == "d.idx: byte 0: the file ends; the header alone takes 34");
  CHECK(of({.magic = std::string("MMIDIDY\0\0", 9)}) ==
        "d.idx: byte 0: does not start as an index does; allowed: MMIDIDX and two zero bytes");
  CHECK(of({.version = 2}) == "d.idx: byte 9: the version is 2; allowed: 1");
  CHECK(of({.code = 9}) ==
        "d.idx: byte 17: the token type is 9; allowed: 1 (uint8), 2 (int8), 3 (int16), 4 (int32), "
        "5 (int64), 8 (uint16)");
  CHECK(of({.code = 7}).starts_with("d.idx: byte 17: the token type is 7 (floating point); "));
  CHECK(of({.num_sequences = uint64_t{1} << 62}) ==
        "d.idx: byte 18: 4611686018427387904 sequences do not fit a file of 94 bytes; allowed: at "
        "most 5");
  CHECK(of({.num_indices = ~uint64_t{0}}).starts_with("d.idx: byte 26: 18446744073709551615 "));
  CHECK(of({.num_indices = 0}) ==
        "d.idx: byte 26: 0 document indices; allowed: 1 to 7 in a file of 94 bytes");
  CHECK(of({.documents = {0}}) ==
        "d.idx: byte 26: no document holds the 3 sequences; allowed: at least one");
  CHECK(of({.num_sequences = 4}) ==
        "d.idx: byte 94: the file ends; 4 sequences and 2 documents take 106 bytes");
  CHECK(of({.more = std::string(3, 0)}) ==
        "d.idx: byte 94: modes of multimodal sequences follow; allowed: text only");
  CHECK(of({.lengths = {3, -1, 2}}) ==
        "d.idx: byte 38: sequence 1 has -1 tokens; allowed: 0 to 2147483647");
  CHECK(
      of({.lengths = {3, 0, 3}}) ==
      "d.idx: byte 42: sequence 2 has 3 tokens of 2 bytes from byte 6 on, but d.bin has 10 bytes");
  CHECK(of({.lengths = {3, 2147483647, 2}})
            .starts_with("d.idx: byte 38: sequence 1 has 2147483647 "));
  CHECK(of({.lengths = {3, 0, 1}}) ==
        "d.bin: has 10 bytes; allowed: 8, which the 3 sequences of d.idx take");
  CHECK(of({.pointers = {0, 6, 1000}}) ==
        "d.idx: byte 62: sequence 2 starts at byte 1000 of d.bin; allowed: 6, where the one before "
        "it ends");
  for (const int64_t pointer :
       {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), int64_t{-2},
        int64_t{4}, int64_t{8}})
    CHECK(of({.pointers = {0, 6, pointer}}).starts_with("d.idx: byte 62: sequence 2 starts at "));
  CHECK(of({.documents = {1, 1, 3}}) == "d.idx: byte 70: document index 0 is 1; allowed: 0");
  CHECK(of({.documents = {0, 4, 3}}) == "d.idx: byte 78: document index 1 is 4; allowed: 0 to 3");
  CHECK(of({.documents = {0, -1, 3}}) == "d.idx: byte 78: document index 1 is -1; allowed: 0 to 3");
  CHECK(of({.documents = {0, 1, 2}}) == "d.idx: byte 86: document index 2 is 2; allowed: 3");
  CHECK(of({.documents = {0, 2, 1, 3}}) ==
        "d.idx: byte 86: document index 2 is 1; allowed: 2 to 3");
}

TEST_CASE("ten million sequences are checked in a few MiB, right or wrong") {
  const testing::TestFolder folder;
  constexpr int64_t kSequences = 10'000'000;
  const Index empty{.lengths = {},
                    .pointers = {},
                    .documents = {},
                    .num_sequences = kSequences,
                    .num_indices = 2};
  folder.write("d.bin", "");
  // Sparse: zeros are empty sequences that all start at 0, and the documents 0 and 0.
  fs::resize_file(folder.write("d.idx", empty.bytes()), 34 + kSequences * 12 + 16);
  for (const bool right : {false, true}) {
    if (right) {
      std::fstream file(folder.path() / "d.idx", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(34 + kSequences * 12 + 8);
      file.write(reinterpret_cast<const char*>(&kSequences), 8);
    }
    testing::reset_peak();
    const int64_t before = testing::peak_kib();
    if (right)
      CHECK(IndexedDataset(folder.path() / "d").document(0) == TokenRange{0, 0});
    else
      CHECK_THROWS_AS(IndexedDataset(folder.path() / "d"), InvalidInput);
    const int64_t grown_mib = (testing::peak_kib() - before) / 1024;
    MESSAGE("an index of 114 MiB: peak memory grew by " << grown_mib << " MiB");
    if (!testing::kSanitized) CHECK(grown_mib < 8);
  }
}

TEST_CASE("a token outside the vocabulary is named with file, byte and position") {
  const testing::TestFolder folder;
  REQUIRE(refusal(folder, Index().bytes(), uint16s(kTokens)) == "");
  const std::string file = (folder.path() / "d.bin").string();
  CHECK_THROWS_WITH_AS(
      check_tokens(IndexedDataset(folder.path() / "d"), 65535),
      (file + ": byte 6: token 65535 at position 3; allowed: 0 to 65534 (a vocabulary of 65535)")
          .c_str(),
      InvalidInput);
  REQUIRE(refusal(folder, Index{.code = 3}.bytes(), uint16s(kTokens)) == "");  // int16: 65535 is -1
  CHECK_THROWS_WITH_AS(check_tokens(IndexedDataset(folder.path() / "d"), 0),
                       (file + ": byte 6: token -1 at position 3; allowed: 0 to 32767").c_str(),
                       InvalidInput);
}

TEST_CASE("a file that becomes shorter while it is read is an error, not a crash") {
  const testing::TestFolder folder;
  REQUIRE(refusal(folder, Index().bytes(), uint16s(kTokens)) == "");
  const IndexedDataset dataset(folder.path() / "d");
  fs::resize_file(folder.path() / "d.bin", 5);
  std::vector<int64_t> tokens(5);
  const std::string expected = (folder.path() / "d.bin").string() +
                               ": cannot be read at byte 5: the file has become shorter";
  CHECK_THROWS_WITH_AS(dataset.read(0, tokens), expected.c_str(), IoError);
}

TEST_CASE("a prefix is told from a text, and half a dataset from both") {
  const testing::TestFolder folder;
  folder.write("both.idx", "");
  folder.write("both.bin", "");
  folder.write("half.idx", "");
  folder.write("text.bin", "abc");
  const std::string path = folder.path().string() + "/";
  CHECK(names_indexed_dataset(path + "both"));
  CHECK_FALSE(names_indexed_dataset(path + "text.bin"));
  CHECK_FALSE(names_indexed_dataset(path + "absent"));
  CHECK_THROWS_WITH_AS(
      names_indexed_dataset(path + "half"),
      (path + "half.bin: is missing beside " + path + "half.idx; an indexed dataset is both")
          .c_str(),
      InvalidInput);
  CHECK_THROWS_WITH_AS(
      names_indexed_dataset(path + "both.bin"),
      (path + "both.bin: is one of the two files of an indexed dataset; give " + path + "both")
          .c_str(),
      InvalidInput);
  CHECK_THROWS_AS(IndexedDataset(path + "absent"), IoError);
  fs::create_directory(path + "folder.idx");
  folder.write("folder.bin", "");
  CHECK_THROWS_AS(IndexedDataset(path + "folder"), InvalidInput);
}

}  // namespace
}  // namespace piper::data
