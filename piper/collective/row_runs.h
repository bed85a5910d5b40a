// Rows that lie next to each other, moved together: what packing and unpacking share.
#pragma once

#include <piper/collective/step_builder.h>

#include <cstdint>
#include <vector>

namespace piper::collective {

// Where a row lies, and the step that brought it (-1: it was there from the start).
struct Place {
  Block block;
  int32_t step = -1;
};

// Neighbouring rows.
struct Run {
  Block block;
  After after;
};

// Appends `step` where it is one and does not stand there yet.
void add_once(After& after, int32_t step);

// Appends a row to the last run where it lies behind it, or else as a run of its own.
void append(std::vector<Run>& runs, const Place& place);

// Copies of rows to the output, as few as possible: rows that follow each other both where they lie
// and where they go are copied at once.
class OutputCopies {
 public:
  // In the order of the output. Nothing is done for a row that is there already.
  void add(const Place& place, const Block& output);
  void write(StepBuilder& steps) const;

 private:
  std::vector<Run> from_;
  std::vector<Block> to_;
};

}  // namespace piper::collective
