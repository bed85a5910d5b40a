#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/base/json.h>
#include <piper/files/file_writer.h>
#include <piper/files/output.h>
#include <piper/train/tensorboard.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

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

// Takes a varint off `bytes`; none when they end before it does.
std::optional<uint64_t> take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

// Takes the value of a field off `bytes`; false: they are no message.
bool skip_field(std::string_view& bytes, uint64_t wire) {
  uint64_t size = wire == kFixed64 ? 8 : 4;
  if (wire == kBytes) {
    const auto length = take_varint(bytes);
    if (!length) return false;
    size = *length;
  } else if (wire != kFixed64 && wire != kFixed32) {
    return false;
  }
  if (size > bytes.size()) return false;
  bytes.remove_prefix(size);
  return true;
}

// The step of an event (field 2; 0 when it has none); none: these bytes are no event.
std::optional<int64_t> step_of_event(std::string_view event) {
  int64_t step = 0;
  while (!event.empty()) {
    const auto tag = take_varint(event);
    if (!tag) return std::nullopt;
    if ((*tag & 7) != kVarint) {
      if (!skip_field(event, *tag & 7)) return std::nullopt;
      continue;
    }
    const auto value = take_varint(event);
    if (!value) return std::nullopt;
    if (*tag >> 3 == 2) step = static_cast<int64_t>(*value);
  }
  return step;
}

template <class T>
T number_at(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

constexpr size_t kRecordHead = 12, kRecordTail = 4;

// The event of the record that `bytes` begin with; none: it is torn or damaged.
std::optional<std::string_view> first_event(std::string_view bytes) {
  if (bytes.size() < kRecordHead + kRecordTail) return std::nullopt;
  const auto size = number_at<uint64_t>(bytes, 0);
  if (number_at<uint32_t>(bytes, 8) != masked(crc32c(bytes.substr(0, 8)))) return std::nullopt;
  if (size > bytes.size() - kRecordHead - kRecordTail) return std::nullopt;
  const std::string_view event = bytes.substr(kRecordHead, size);
  if (number_at<uint32_t>(bytes, kRecordHead + size) != masked(crc32c(event))) return std::nullopt;
  return event;
}

// The bytes of the record there, or as many of them as could hold one of a step.
std::string_view record_at(files::Bytes& bytes, size_t offset) {
  constexpr uint64_t kLongest = uint64_t{16} << 20;
  const std::string_view head = bytes.at(offset, kRecordHead);
  if (head.size() < kRecordHead) return head;
  const uint64_t size = std::min(number_at<uint64_t>(head, 0), kLongest);
  return bytes.at(offset, kRecordHead + size + kRecordTail);
}

constexpr std::string_view kEventPrefix = "events.out.tfevents.", kEventSuffix = ".piper";

// The digits in the name of an event file.
std::string_view number_in(std::string_view name) {
  name.remove_prefix(kEventPrefix.size());
  name.remove_suffix(kEventSuffix.size());
  return name;
}

std::vector<std::filesystem::path> event_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (is_event_file(entry.path().filename().string()) && entry.is_regular_file() &&
        !entry.is_symlink())
      files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// Leaves of an earlier start's file what came before `first_step`. Returns what to tell the user.
std::string cut_events(const std::filesystem::path& file, int64_t first_step) {
  const FileReader content(file, Reads::kRecord);
  const files::SoundPart part = sound_events(files::Bytes(content), first_step - 1);
  const std::string name = file.filename().string();
  const std::string said =
      files::cut_tail(file, files::Bytes(content), part,
                      file.parent_path() / fmt::format("events.{}.damaged", number_in(name)));
  if (part.last_step == 0) files::remove_output(file);
  return said;
}

}  // namespace

bool is_event_file(std::string_view name) {
  return name.size() > kEventPrefix.size() + kEventSuffix.size() &&
         name.starts_with(kEventPrefix) && name.ends_with(kEventSuffix) &&
         number_in(name).find_first_not_of("0123456789") == std::string_view::npos;
}

files::SoundPart sound_events(files::Bytes bytes, int64_t last_step) {
  files::SoundPart part;
  for (int64_t number = 1; part.sound < bytes.size(); ++number) {
    const auto event = first_event(record_at(bytes, part.sound));
    const auto step = event ? step_of_event(*event) : std::nullopt;
    if (!step) {
      part.damage = fmt::format("record {} is torn or damaged", number);
      return part;
    }
    const bool follows = part.kept == part.sound;  // nothing before it was left out
    part.sound += kRecordHead + event->size() + kRecordTail;
    if (!follows || *step > last_step) continue;
    part.kept = part.sound;
    part.last_step = std::max(part.last_step, *step);
  }
  return part;
}

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes)
    crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

EventWriter::EventWriter(const std::filesystem::path& folder, int64_t first_step)
    : path_(folder / fmt::format("{}{:010}{}", kEventPrefix, first_step, kEventSuffix)) {
  files::make_folders(folder);
  try {
    for (const std::filesystem::path& file : event_files(folder))
      if (std::string note = cut_events(file, first_step); !note.empty())
        notes_.push_back(std::move(note));
  } catch (const std::filesystem::filesystem_error& error) {
    throw IoError(fmt::format("{}: {}", folder.string(), error.code().message()));
  }
  open();
}

// The first record names the format and, as the source of what follows, Piper.
void EventWriter::open() {
  file_.reset(
      ::fdopen(files::open_output(path_, files::Start::kEmpty, files::Existing::kRecord), "w"));
  if (!file_) throw IoError(path_.string() + ": cannot be written: " + std::strerror(errno));
  std::string version = event_head(0, 0), source;
  bytes_field(version, 3, "brain.Event:2");
  bytes_field(source, 1, "written by piper");
  bytes_field(version, 10, source);
  record(version);
}

std::vector<std::string> EventWriter::take_notes() { return std::exchange(notes_, {}); }

void EventWriter::sync() const {
  const std::lock_guard lock(mutex_);
  if (::fsync(::fileno(file_.get())) != 0)
    throw IoError(path_.string() + ": cannot be flushed: " + std::strerror(errno));
}

void EventWriter::write(int64_t step, double seconds,
                        const std::vector<std::pair<std::string, double>>& scalars) {
  if (!files::is_still(path_, ::fileno(file_.get()))) {
    const std::lock_guard lock(mutex_);
    files::require_output(path_, files::Existing::kOurs);
    open();
    notes_.push_back(
        fmt::format("{}: was removed or replaced while training: what was in it before step {} is "
                    "not in it any more",
                    path_.string(), step));
  }
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
