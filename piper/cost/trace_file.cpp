#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/base/units.h>
#include <piper/cost/trace_file.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>

namespace piper::cost {
namespace {

constexpr size_t kPiece = size_t{1} << 18;
constexpr int kGzip = 16 + MAX_WBITS;  // of inflateInit2: a head of gzip and nothing else

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

}  // namespace

std::string gunzipped(std::string_view bytes, const std::string& source, int64_t most_bytes) {
  if (!is_gzip(bytes)) return std::string(bytes);
  z_stream stream{};
  PIPER_CHECK(inflateInit2(&stream, kGzip) == Z_OK, "zlib has no memory");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> ends(&stream, inflateEnd);
  std::string text, piece(kPiece, '\0');
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
    text.append(piece, 0, piece.size() - stream.avail_out);
    if (std::ssize(text) > most_bytes)
      throw InvalidInput(fmt::format("{}: is longer than {} when decompressed; allowed: up to that",
                                     source, format_bytes(static_cast<double>(most_bytes))));
    const bool is_at_end = stream.avail_in == 0 && bytes.empty();
    if (status == Z_STREAM_END) {
      if (is_at_end) return text;
      inflateReset(&stream);  // another member
    } else if (status != Z_OK || (is_at_end && stream.avail_out > 0)) {
      throw InvalidInput(
          fmt::format("{}: gzip that {} after {} of text; allowed: all of a file "
                      "that gzip wrote",
                      source, is_at_end ? "is cut off" : "is damaged",
                      format_bytes(static_cast<double>(text.size()))));
    }
  }
}

std::string read_trace_file(const std::filesystem::path& path) {
  return gunzipped(read_text_file(path, kMostTraceBytes), path.string());
}

}  // namespace piper::cost
