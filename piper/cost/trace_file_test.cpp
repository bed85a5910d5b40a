#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/cost/trace_file.h>
#include <tests/test_peak_memory.h>
#include <zlib.h>

#include <functional>
#include <string>

namespace piper::cost {
namespace {

std::string gzipped(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string refused_bytes(const std::string& bytes, int64_t most_bytes = kMostTraceBytes) {
  try {
    gunzipped(bytes, "t.gz", most_bytes);
  } catch (const InvalidInput& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("what gzip made comes back, several members too; a plain text stays as it is") {
  std::string large;
  for (int64_t i = 0; i < 300'000; ++i) large += std::to_string(i * 7919 % 10007) + ",";
  for (const std::string& text : {std::string(), std::string("iter,layer,e0\n1,0,1\n"), large}) {
    CHECK(gunzipped(gzipped(text), "t.gz") == text);
    CHECK(gunzipped(gzipped(text) + gzipped("end"), "t.gz") == text + "end");
    CHECK(gunzipped(text, "t") == text);
  }
}

TEST_CASE("gzip that is cut off, damaged or too long ends in one line that says so") {
  const std::string text(1'000'000, 'x');
  const std::string bytes = gzipped(text);
  for (const size_t length : {size_t{2}, size_t{11}, bytes.size() / 2, bytes.size() - 1})
    CHECK(refused_bytes(bytes.substr(0, length)).find("t.gz: gzip that is cut off") == 0);
  std::string damaged = bytes;
  damaged[bytes.size() / 2] ^= 0x55;
  CHECK(refused_bytes(damaged).find("t.gz: gzip that is ") == 0);
  CHECK(refused_bytes(bytes + "no gzip").find("t.gz: gzip that is damaged") == 0);
  CHECK(refused_bytes(bytes, 999'999).find("allowed: up to that") != std::string::npos);
  CHECK(refused_bytes(bytes, 1'000'000).empty());
}

TEST_CASE("a compressed trace takes no memory beside its text, one that is refused none") {
  constexpr int64_t kLength = int64_t{192} << 20, kBeside = int64_t{64} << 10;  // KiB
  const std::string bytes = gzipped(std::string(static_cast<size_t>(kLength), ' '));
  const auto peak_of = [&](int64_t most_bytes) {
    piper::testing::reset_peak();
    const int64_t before = piper::testing::peak_kib();
    try {
      const std::string text = gunzipped(bytes, "t.gz", most_bytes);
      CHECK(std::ssize(text) == kLength);
    } catch (const InvalidInput&) {
    }
    return piper::testing::peak_kib() - before;
  };
  if (piper::testing::kSanitized) return;
  CHECK(peak_of(kLength - 1) < kBeside);
  CHECK(peak_of(kLength) < kLength / 1024 + kBeside);
}

}  // namespace piper::cost
