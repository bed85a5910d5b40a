#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/train/corpus.h>
#include <piper/train/indexed_dataset_writer.h>
#include <piper/train/test_folder.h>

namespace piper::train {
namespace {

namespace fs = std::filesystem;

fs::path write_dataset(const TestFolder& folder, const std::string& name, TokenType type,
                       const std::vector<int64_t>& tokens) {
  IndexedDatasetWriter writer(folder.path() / name, type);
  writer.append(tokens);
  writer.finish();
  return folder.path() / name;
}

std::vector<int64_t> tokens_of(const Corpus& corpus, int64_t begin, int64_t end) {
  std::vector<int64_t> tokens(static_cast<size_t>(end - begin));
  corpus.read(begin, tokens);
  return tokens;
}

std::vector<int64_t> all_of(const Corpus& corpus) { return tokens_of(corpus, 0, corpus.size()); }

TEST_CASE("the tokens of a byte text are its bytes, 128 and above included") {
  const Corpus corpus = Text("a\xff\x80", "t");
  CHECK(all_of(corpus) == std::vector<int64_t>{97, 255, 128});
  CHECK(tokens_of(corpus, 1, 2) == std::vector<int64_t>{255});
  CHECK_FALSE(corpus.is_indexed());
  CHECK(Corpus().size() == 0);
}

TEST_CASE("several datasets are one stream, whatever their token types, in whole and in part") {
  const TestFolder folder;
  const Corpus corpus = read_corpus({write_dataset(folder, "a", TokenType::kUint8, {1, 2, 3}),
                                     write_dataset(folder, "none", TokenType::kInt64, {}),
                                     write_dataset(folder, "b", TokenType::kInt32, {70000, 5})});
  CHECK(corpus.is_indexed());
  CHECK(all_of(corpus) == std::vector<int64_t>{1, 2, 3, 70000, 5});
  for (int64_t begin = 0; begin < 5; ++begin)
    for (int64_t end = begin + 1; end <= 5; ++end) {
      const Corpus part = corpus.part(begin, end, "part");
      CHECK(all_of(part) == tokens_of(corpus, begin, end));
      if (end - begin > 1)
        CHECK(all_of(part.part(1, end - begin, "x")) == tokens_of(corpus, begin + 1, end));
    }
  CHECK(corpus.part(0, 1, "head").source() == corpus.source() + " (head)");
}

TEST_CASE("several texts are read one after the other; text and datasets do not mix") {
  const TestFolder folder;
  const fs::path a = folder.write("a.txt", "ab"), b = folder.write("b.txt", "c");
  const Corpus corpus = read_corpus({a, b});
  CHECK(all_of(corpus) == std::vector<int64_t>{97, 98, 99});
  CHECK(corpus.source() == a.string() + ", " + b.string());
  CHECK_THROWS_AS(read_corpus({a, write_dataset(folder, "d", TokenType::kUint8, {1})}),
                  InvalidInput);
}

TEST_CASE("the validation part is the last fraction and shares no token with training") {
  const Text text("0123456789", "digits");
  const CorpusSplit split = split_corpus(text, 0.3);
  CHECK(all_of(split.train) == std::vector<int64_t>{'0', '1', '2', '3', '4', '5', '6'});
  CHECK(all_of(split.validation) == std::vector<int64_t>{'7', '8', '9'});
  CHECK(split.validation.source() == "digits (validation part)");
  for (const double bad : {0.0, 1.0, -1.0, 0.05, 2.0})
    CHECK_THROWS_AS(split_corpus(text, bad), InvalidInput);
  const TestFolder folder;
  const CorpusSplit indexed =
      split_corpus(read_corpus({write_dataset(folder, "a", TokenType::kInt16, {5, 6, 7, 8})}), 0.5);
  CHECK(all_of(indexed.train) == std::vector<int64_t>{5, 6});
  CHECK(all_of(indexed.validation) == std::vector<int64_t>{7, 8});
}

TEST_CASE("a corpus too short for a window is refused") {
  const Text text("abcd", "t");
  CHECK_NOTHROW(check_window(text, 3));
  CHECK_THROWS_WITH_AS(check_window(text, 4),
                       "t: holds 4 bytes; a sequence of 4 tokens and its last target need 5",
                       InvalidInput);
}

TEST_CASE("the fingerprint is that of the tokens, not of where they lie") {
  // FIPS 180-4 example: SHA-256 of "abc".
  const std::string abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  CHECK(Corpus(Text("abc", "t")).fingerprint() == abc);
  CHECK(Corpus(Text("xabcx", "t")).part(1, 4, "middle").fingerprint() == abc);
  const TestFolder folder;
  const Corpus a = read_corpus({write_dataset(folder, "a", TokenType::kUint16, {1, 2, 3, 4})});
  const Corpus b = read_corpus({write_dataset(folder, "b", TokenType::kUint16, {9, 1, 2, 3, 4})});
  CHECK(a.fingerprint() != b.fingerprint());
  CHECK(a.fingerprint() == b.part(1, 5, "tail").fingerprint());
  CHECK(a.fingerprint() != a.part(0, 3, "head").fingerprint());
}

TEST_CASE("a token outside the vocabulary is found in any of the datasets") {
  const TestFolder folder;
  const Corpus corpus = read_corpus({write_dataset(folder, "a", TokenType::kUint16, {1, 2}),
                                     write_dataset(folder, "b", TokenType::kUint16, {3, 300, 4})});
  CHECK_NOTHROW(corpus.check_vocabulary(301));
  const std::string expected = (folder.path() / "b.bin").string() +
                               ": byte 2: token 300 at position 1; allowed: 0 to 255 (a vocabulary "
                               "of 256)";
  CHECK_THROWS_WITH_AS(corpus.check_vocabulary(256), expected.c_str(), InvalidInput);
  CHECK_THROWS_AS(Corpus(Text("\xff", "t")).check_vocabulary(255), InvalidInput);
}

}  // namespace
}  // namespace piper::train
