// metrics.jsonl, a line a step (report/metrics.h says what is in it): how it is written, and how
// much of it a crash left.
#pragma once

#include <piper/files/file_tail.h>
#include <piper/report/metrics.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace piper::train {

// How far metrics.jsonl can be trusted, and how much of that belongs to steps up to `last_step`. A
// line is sound when a newline ends it, it is one JSON object, its "step" is an integer from 1, and
// the step is greater than the one of the line before; a line that skips steps only if the line
// behind it goes on from there. Steps may be missing where an earlier tail was cut off. Never
// throws: any bytes are an answer. Linear.
files::SoundPart sound_metrics(std::string_view bytes, int64_t last_step);

// Appends to metrics.jsonl, a line a step, each flushed. One thread, but for sync().
class MetricsWriter {
 public:
  // Keeps the lines of an existing file up to `last_step` (of the checkpoint resumed from; 0 = a
  // new run) and drops the later ones; a damaged tail goes to metrics.jsonl.damaged (file_tail.h)
  // and into notes(). Throws IoError.
  MetricsWriter(std::filesystem::path path, int64_t last_step);

  void write(const report::StepMetrics& metrics);  // throws IoError
  // Returns when all lines written before the call are on the disk. Any thread. Throws IoError.
  void sync() const;

  // What to tell the user of the file as it was found.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<std::string> notes_;
};

}  // namespace piper::train
