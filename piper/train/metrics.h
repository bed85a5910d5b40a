// metrics.jsonl, a line a step (report/metrics.h says what is in it): how it is written, and how
// much of it a crash left.
#pragma once

#include <piper/files/file_tail.h>
#include <piper/report/metrics.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace piper::train {

// How far metrics.jsonl can be trusted, and how much of that belongs to steps up to `last_step`. A
// line is sound when a newline ends it, it is one JSON object, its "step" is an integer from 1, and
// the step is greater than the one of the line before; a line that skips steps only if the line
// behind it goes on from there. Steps may be missing where an earlier tail was cut off. Never
// throws: any bytes are an answer. Linear.
files::SoundPart sound_metrics(files::Bytes bytes, int64_t last_step);

// Appends to metrics.jsonl, a line a step, each flushed. One thread, but for sync().
class MetricsWriter {
 public:
  // Keeps the lines of an existing file up to `last_step` (of the checkpoint resumed from; 0 = a
  // new run) and drops the later ones; a damaged tail goes to metrics.jsonl.damaged (file_tail.h)
  // and into take_notes(). Throws IoError.
  MetricsWriter(std::filesystem::path path, int64_t last_step);

  // One thread. Where the file has been removed or replaced since, a new one is begun, and a note
  // says so. Throws IoError; InvalidInput where something of somebody else lies there.
  void write(const report::StepMetrics& metrics);
  // Returns when all lines written before the call are on the disk. Any thread. Throws IoError.
  void sync() const;

  // What to tell the user of the file, since the last call. The thread that writes.
  std::vector<std::string> take_notes();

 private:
  void open();
  void open_again_where_it_is_gone(int64_t step);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  mutable std::mutex mutex_;  // of file_, which sync() uses while a line is written
  bool is_empty_ = true;      // the first line says whose file it is
  std::vector<std::string> notes_;
};

}  // namespace piper::train
