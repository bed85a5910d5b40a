// What a crash, a power cut or a bad disk leaves at the end of a file that grows record by record
// (metrics.jsonl, TensorBoard's events): the sound part stays, the rest is moved to a file beside
// it. Nothing is ever lost by it.
#pragma once

#include <piper/base/file_reader.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace piper::files {

// The bytes of such a file, read piece by piece, however long it is: of a text, or of a file that
// outlives this. One thread.
class Bytes {
 public:
  Bytes(std::string_view text) : text_(text), size_(text.size()) {}
  Bytes(const std::string& text) : Bytes(std::string_view(text)) {}
  explicit Bytes(const FileReader& file) : file_(&file), size_(static_cast<size_t>(file.size())) {}

  size_t size() const { return size_; }
  // At most `most` bytes from `offset` on, fewer only where they end; valid until the next call.
  // Throws IoError.
  std::string_view at(size_t offset, size_t most);

 private:
  std::string_view text_;
  const FileReader* file_ = nullptr;
  size_t size_;
  std::string block_;  // of the file, from block_offset_ on
  size_t block_offset_ = 0;
};

// How far a file can be trusted. `kept` <= `sound` <= its size.
struct SoundPart {
  size_t kept = 0;        // bytes of the leading records up to the step that was asked for
  size_t sound = 0;       // bytes of all leading records that are whole and sound
  int64_t last_step = 0;  // of the kept records; 0 = none
  std::string damage;     // why what follows `sound` cannot be used; "" = nothing follows
};

// Cuts the file at `part.kept`. What lies behind `part.sound` is first written to `beside`, or to
// `beside`-2, -3, ... when that is taken, and is on the disk before the cut. `content` is what the
// file holds. Returns what to tell the user, one line; "" = nothing was damaged. Throws IoError.
// One thread.
std::string cut_tail(const std::filesystem::path& file, Bytes content, const SoundPart& part,
                     const std::filesystem::path& beside);

// `wanted`, or the first of `wanted`-2, -3, ... that nothing has.
std::filesystem::path unused_path(const std::filesystem::path& wanted);

}  // namespace piper::files
