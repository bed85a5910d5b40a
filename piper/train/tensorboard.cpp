#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/train/tensorboard.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

namespace piper::train {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

// TFRecord's: a CRC of data that holds CRCs is weak, so it is rotated and moved.
uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8u; }

template <class T>
void append(std::string& to, T value) {
  static_assert(std::endian::native == std::endian::little);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  to.append(bytes, sizeof(T));
}

void varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<char>(value | 0x80));
  to.push_back(static_cast<char>(value));
}

// Protocol buffers' wire types.
enum Wire : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
void key(std::string& to, uint64_t field, Wire wire) { varint(to, field << 3 | wire); }
void bytes_field(std::string& to, uint64_t field, std::string_view bytes) {
  key(to, field, kBytes);
  varint(to, bytes.size());
  to += bytes;
}

std::string event_head(double seconds, int64_t step) {
  std::string event;
  key(event, 1, kFixed64);
  append(event, seconds);
  key(event, 2, kVarint);
  varint(event, static_cast<uint64_t>(step));
  return event;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes)
    crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

EventWriter::EventWriter(const std::filesystem::path& folder, int64_t first_step)
    : path_(folder / fmt::format("events.out.tfevents.{:010}.piper", first_step)) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  file_.reset(std::fopen(path_.c_str(), "wbe"));
  if (!file_) throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
  std::string version = event_head(0, 0);
  bytes_field(version, 3, "brain.Event:2");
  record(version);
}

void EventWriter::write(int64_t step, double seconds,
                        const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    std::string one;
    bytes_field(one, 1, tag);
    key(one, 2, kFixed32);
    append(one, static_cast<float>(value));
    bytes_field(summary, 1, one);
  }
  std::string event = event_head(seconds, step);
  bytes_field(event, 5, summary);
  record(event);
}

void EventWriter::record(std::string_view event) {
  std::string out;
  append(out, static_cast<uint64_t>(event.size()));
  append(out, masked(crc32c(out)));
  out += event;
  append(out, masked(crc32c(event)));
  if (std::fwrite(out.data(), 1, out.size(), file_.get()) != out.size() ||
      std::fflush(file_.get()) != 0)
    throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
}

}  // namespace piper::train
