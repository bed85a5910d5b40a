// A TensorBoard event file: scalars by tag and step, as `tensorboard --logdir RUN` reads them.
//
// A record is its length, a masked CRC-32C of the length, the event (protocol buffers, tensorflow.Event), and a masked
// CRC-32C of the event (TFRecord framing). One writer a file, one thread; each event is flushed, so a killed run leaves whole
// records and at most one cut short, which TensorBoard skips.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace piper::train {

class EventWriter {
 public:
  // Creates FOLDER/events.out.tfevents.<first_step>.piper, the folder too, and empties an existing file of that name.
  // Throws IoError.
  EventWriter(const std::filesystem::path& folder, int64_t first_step);

  // Scalars of one step; `seconds` since 1970. Throws IoError.
  void write(int64_t step, double seconds,
             const std::vector<std::pair<std::string, double>>& scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  void record(std::string_view event);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// CRC-32C (Castagnoli), for the tests.
uint32_t crc32c(std::string_view bytes);

}  // namespace piper::train
