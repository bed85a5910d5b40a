#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/data/corpus.h>
#include <piper/data/indexed_dataset_writer.h>
#include <tests/test_folder.h>
#include <tests/test_peak_memory.h>

#include <fstream>

namespace piper::data {
namespace {

namespace fs = std::filesystem;

fs::path write_dataset(const testing::TestFolder& folder, const std::string& name, TokenType type,
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
  const testing::TestFolder folder;
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
  const testing::TestFolder folder;
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
  const testing::TestFolder folder;
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
  const testing::TestFolder folder;
  const Corpus a = read_corpus({write_dataset(folder, "a", TokenType::kUint16, {1, 2, 3, 4})});
  const Corpus b = read_corpus({write_dataset(folder, "b", TokenType::kUint16, {9, 1, 2, 3, 4})});
  CHECK(a.fingerprint() != b.fingerprint());
  CHECK(a.fingerprint() == b.part(1, 5, "tail").fingerprint());
  CHECK(a.fingerprint() != a.part(0, 3, "head").fingerprint());
}

// Zeros that take no room on disk, with `marks` written at their offsets.
fs::path sparse(const testing::TestFolder& folder, const std::string& name, int64_t size,
                const std::vector<int64_t>& marks = {}) {
  const fs::path path = folder.write(name, "");
  fs::resize_file(path, static_cast<uintmax_t>(size));
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  for (const int64_t at : marks) file.seekp(at).put('x');
  return path;
}

// Returns the KiB that this process holds in memory, without pages of files.
int64_t anonymous_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (int64_t kib = 0; word == "RssAnon:" && status >> kib) return kib;
  return -1;
}

constexpr int64_t kGiB = int64_t{1} << 30;

TEST_CASE("50 GB of text take no memory: windows and the fingerprint are read from the file") {
  const testing::TestFolder folder;
  const int64_t size = 50'000'000'000;
  const fs::path path = sparse(folder, "large.txt", size, {0, 5 * kGiB, size - 2});
  testing::reset_peak();
  const int64_t peak_before = testing::peak_kib(), before = anonymous_kib();
  REQUIRE(before > 0);
  const Corpus corpus = read_corpus({path});
  CHECK(corpus.size() == size);
  CHECK(tokens_of(corpus, 0, 2) == std::vector<int64_t>{'x', 0});
  CHECK(tokens_of(corpus, 5 * kGiB - 1, 5 * kGiB + 2) == std::vector<int64_t>{0, 'x', 0});
  CHECK(tokens_of(corpus, size - 3, size) == std::vector<int64_t>{0, 'x', 0});
  CHECK_NOTHROW(corpus.check_vocabulary(256));
  CHECK(corpus.fingerprint().starts_with("sampled-sha256:"));
  CHECK(split_corpus(corpus, 0.5).validation.size() == size / 2);
  MESSAGE("anonymous memory grew by " << anonymous_kib() - before << " KiB, the peak by "
                                      << testing::peak_kib() - peak_before);
  CHECK(anonymous_kib() - before < 4096);
  if (!testing::kSanitized) CHECK(testing::peak_kib() - peak_before < 8192);
}

// 16 blocks of 4 KiB of what is longer than 1 MiB.
constexpr FingerprintRule kShort = {
    .whole_bytes = 1 << 20, .num_blocks = 16, .block_bytes = 1 << 12};

TEST_CASE("the fingerprint of a long text sees the length, both ends and blocks evenly spaced") {
  const testing::TestFolder folder;
  const int64_t size = 2'000'001, block = kShort.block_bytes;
  const auto of = [&](int64_t bytes, const std::vector<int64_t>& marks) {
    return read_corpus({sparse(folder, "text", bytes, marks)}, kShort).fingerprint();
  };
  const std::string none = of(size, {});
  CHECK(none.starts_with("sampled-sha256:"));
  CHECK(of(size, {}) == none);
  CHECK(of(size + 1, {}) != none);
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t begin = (size - block) * i / 15;
    for (const int64_t seen : {begin, begin + block - 1}) CHECK(of(size, {seen}) != none);
    // What lies between two blocks is not looked at.
    if (i < 15) CHECK(of(size, {begin + block}) == none);
    if (i > 0) CHECK(of(size, {begin - 1}) == none);
  }
}

TEST_CASE("a text of up to the rule's length is hashed whole, a longer one for older checkpoints") {
  CHECK(FingerprintRule{}.whole_bytes == 4 * kGiB);  // what was read whole before there was a rule
  const testing::TestFolder folder;
  const fs::path path = sparse(folder, "text", 1 << 20, {700'000});
  const std::string whole = files::sha256_of_file(path);
  CHECK(read_corpus({path}, kShort).fingerprint() == whole);
  CHECK(read_corpus({path}, kShort).has_fingerprint(whole));
  sparse(folder, "text", (1 << 20) + 1, {700'000});
  const Corpus longer = read_corpus({path}, kShort);
  CHECK(longer.fingerprint().starts_with("sampled-sha256:"));
  CHECK(longer.has_fingerprint(longer.fingerprint()));
  CHECK_FALSE(longer.has_fingerprint(whole));
  CHECK(longer.has_fingerprint(files::sha256_of_file(path)));
  CHECK(longer.part(0, 1 << 20, "whole").fingerprint() == whole);
}

TEST_CASE("long datasets are hashed in blocks of each one's tokens") {
  const testing::TestFolder folder;
  const auto of = [&](int64_t changed) {
    std::vector<int64_t> tokens(400'000, 1);  // of 4 bytes
    if (changed >= 0) tokens[static_cast<size_t>(changed)] = 2;
    return read_corpus({write_dataset(folder, "short", TokenType::kUint8, {1, 2, 3}),
                        write_dataset(folder, "long", TokenType::kInt32, tokens)},
                       kShort)
        .fingerprint();
  };
  const std::string none = of(-1);
  CHECK(none.starts_with("sampled-sha256:"));
  for (const int64_t seen : {0, 1023, 399'999 - 1023, 399'999}) CHECK(of(seen) != none);
  CHECK(of(1024) == none);
}

TEST_CASE("several long files are one text, read across their ends; one that changes is refused") {
  const testing::TestFolder folder;
  std::vector<fs::path> files;
  for (int i = 0; i < 300; ++i)  // more than are held open
    files.push_back(sparse(folder, std::to_string(i), int64_t{1} << 20, {0, (1 << 20) - 1}));
  files.push_back(folder.write("empty", ""));
  const Corpus corpus = read_corpus(files);
  CHECK(corpus.size() == int64_t{300} << 20);
  for (const int64_t end : {1, 7, 255, 256, 257, 299})
    CHECK(tokens_of(corpus, (end << 20) - 2, (end << 20) + 2) ==
          std::vector<int64_t>{0, 'x', 'x', 0});
  CHECK(tokens_of(corpus, 0, 3 << 20).size() == 3 << 20);

  fs::resize_file(files[10], 1000);  // held open
  CHECK_THROWS_WITH_AS(
      tokens_of(corpus, (10 << 20) + 2000, (10 << 20) + 2001),
      (files[10].string() + ": cannot be read at byte 2000: the file has become shorter").c_str(),
      IoError);
  CHECK(tokens_of(corpus, (10 << 20) + 1, (10 << 20) + 2) == std::vector<int64_t>{0});
  fs::resize_file(files[290], 1000);
  CHECK_THROWS_WITH_AS(tokens_of(corpus, 290 << 20, (290 << 20) + 1),
                       (files[290].string() + ": has changed since it was first opened").c_str(),
                       IoError);
}

TEST_CASE("a token outside the vocabulary is found in any of the datasets") {
  const testing::TestFolder folder;
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
}  // namespace piper::data
