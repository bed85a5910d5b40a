// A TensorBoard event file: scalars by tag and step, as `tensorboard --logdir RUN` reads them.
//
// A record is its length, a masked CRC-32C of the length, the event (protocol buffers,
// tensorflow.Event), and a masked CRC-32C of the event (TFRecord framing). A run writes one file
// each time it starts; each event is flushed, so a killed run leaves whole records and at most one
// cut short, which the next start cuts off.
#pragma once

#include <piper/files/file_tail.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace piper::train {

// How far an event file can be trusted, and how much of it belongs to steps up to `last_step`:
// records whose two checksums are right and whose event can be read. Never throws: any bytes are an
// answer. Linear.
files::SoundPart sound_events(files::Bytes bytes, int64_t last_step);

class EventWriter {
 public:
  // Makes the folder and FOLDER/events.out.tfevents.<first_step>.piper. In Piper's files that are
  // there already, what belongs to `first_step` or later is cut off, since this run writes it
  // again, and a file that then says nothing is removed; a damaged tail goes to FOLDER/events.<its
  // step>.damaged (a name that TensorBoard does not read) and into take_notes(). Throws IoError.
  EventWriter(const std::filesystem::path& folder, int64_t first_step);

  // Scalars of one step; `seconds` since 1970. Throws IoError. One thread.
  void write(int64_t step, double seconds,
             const std::vector<std::pair<std::string, double>>& scalars);
  // Returns when all events written before the call are on the disk. Any thread. Throws IoError.
  void sync() const;

  // What to tell the user of the files, since the last call. The thread that writes.
  std::vector<std::string> take_notes();
  const std::filesystem::path& path() const { return path_; }

 private:
  void open();
  void record(std::string_view event);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  mutable std::mutex mutex_;  // of file_, which sync() uses while an event is written
  std::vector<std::string> notes_;
};

// "events.out.tfevents.0000000001.piper": a name that only EventWriter gives.
bool is_event_file(std::string_view name);

// CRC-32C (Castagnoli), for the tests.
uint32_t crc32c(std::string_view bytes);

}  // namespace piper::train
