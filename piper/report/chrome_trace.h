// A step as Chrome's trace event JSON, for ui.perfetto.dev, chrome://tracing and `piper
// report`. The same writer for simulated and measured timelines, so that one can be laid over the
// other task by task.
//
//   process (pid)  a rank: "rank 3 · stage 1"
//   thread  (tid)  a stream; communication that overlaps on its stream gets further lanes
//   ("exchange 2") X              a task: ts and dur in microseconds, cat = name(BarClass), args:
//   phase, kind, segment, layer,
//                  micro_batch, task (its id), bytes when known
//   s, f           an arrow from each send to its receive
//   C              live bytes of a rank over time ("memory"), when the timeline has them
//
// Source of the format: "Trace Event Format", Google,
// docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/graph/timeline.h>
#include <piper/report/gantt.h>
#include <piper/schedule/step.h>

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

namespace piper::report {

struct TraceDescription {
  std::string title;                   // "predicted", "measured": kept under otherData
  std::vector<int64_t> stage_of_rank;  // empty = unknown
  std::vector<int64_t>
      bytes;  // moved by each task, by TaskId; empty = unknown, entries < 0 are left out
};

// Writes as it goes (a million tasks need no more memory than a few). The stream's state says
// whether it worked.
void write_chrome_trace(std::ostream& out, const schedule::StepGraph& step,
                        const graph::Timeline& timeline, const TraceDescription& description = {});

// The same to a file, complete or not at all. Throws IoError.
void write_chrome_trace_file(const std::filesystem::path& path, const schedule::StepGraph& step,
                             const graph::Timeline& timeline,
                             const TraceDescription& description = {});

// Reads what write_chrome_trace() wrote. Throws InvalidInput, naming the event, on anything else.
Gantt parse_chrome_trace(const Json& json, const std::string& source);

}  // namespace piper::report
