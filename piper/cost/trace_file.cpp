#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cost/trace_file.h>
#include <zlib.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

namespace piper::cost {
namespace {

constexpr size_t kPiece = size_t{1} << 18;
constexpr int kGzip = 16 + MAX_WBITS;  // of inflateInit2: a head of gzip and nothing else

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

using Take = std::function<void(std::string_view)>;

// Gives what was compressed piece by piece; throws as gunzipped().
void inflate_all(std::string_view bytes, const std::string& source, int64_t most_bytes,
                 const Take& take) {
  z_stream stream{};
  PIPER_CHECK(inflateInit2(&stream, kGzip) == Z_OK, "zlib has no memory");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> ends(&stream, inflateEnd);
  std::string piece(kPiece, '\0');
  int64_t length = 0;
  while (true) {
    if (stream.avail_in == 0) {  // zlib counts in 32 bits
      const size_t next =
          std::min<size_t>(bytes.size(), std::numeric_limits<decltype(stream.avail_in)>::max());
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream.avail_in = static_cast<uInt>(next);
      bytes.remove_prefix(next);
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    const int status = inflate(&stream, Z_NO_FLUSH);
    const size_t given = piece.size() - stream.avail_out;
    length += static_cast<int64_t>(given);
    if (length > most_bytes)
      throw InvalidInput(fmt::format("{}: is longer than {} when decompressed; allowed: up to that",
                                     source, format_bytes(static_cast<double>(most_bytes))));
    take(std::string_view(piece).substr(0, given));
    const bool is_at_end = stream.avail_in == 0 && bytes.empty();
    if (status == Z_STREAM_END) {
      if (is_at_end) return;
      inflateReset(&stream);  // another member
    } else if (status != Z_OK || (is_at_end && stream.avail_out > 0)) {
      throw InvalidInput(
          fmt::format("{}: gzip that {} after {} of text; allowed: all of a file "
                      "that gzip wrote",
                      source, is_at_end ? "is cut off" : "is damaged",
                      format_bytes(static_cast<double>(length))));
    }
  }
}

}  // namespace

// Twice: first its length, so that a text that is too long or damaged takes no memory, and another
// one no more than it has.
std::string gunzipped(std::string_view bytes, const std::string& source, int64_t most_bytes) {
  if (!is_gzip(bytes)) return std::string(bytes);
  size_t length = 0;
  inflate_all(bytes, source, most_bytes, [&](std::string_view piece) { length += piece.size(); });
  std::string text;
  text.reserve(length);
  inflate_all(bytes, source, most_bytes, [&](std::string_view piece) { text += piece; });
  return text;
}

std::string read_trace_file(const std::filesystem::path& path) {
  return gunzipped(read_text_file(path, kMostTraceBytes), path.string());
}

}  // namespace piper::cost
