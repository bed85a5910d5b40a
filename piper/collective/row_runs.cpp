#include <piper/collective/row_runs.h>

#include <algorithm>

namespace piper::collective {
namespace {

bool follows(const Block& before, const Block& block) {
  return before.buffer == block.buffer && before.offset + before.count == block.offset;
}

}  // namespace

void add_once(After& after, int32_t step) {
  if (step >= 0 && std::find(after.begin(), after.end(), step) == after.end())
    after.push_back(step);
}

void append(std::vector<Run>& runs, const Place& place) {
  if (place.block.count == 0) return;
  if (runs.empty() || !follows(runs.back().block, place.block))
    runs.push_back({{place.block.buffer, place.block.offset, 0}, {}});
  runs.back().block.count += place.block.count;
  add_once(runs.back().after, place.step);
}

void OutputCopies::add(const Place& place, const Block& output) {
  if (output.count == 0 || place.block.buffer == Buffer::kOutput) return;
  if (from_.empty() || !follows(from_.back().block, place.block) || !follows(to_.back(), output)) {
    from_.push_back({{place.block.buffer, place.block.offset, 0}, {}});
    to_.push_back({output.buffer, output.offset, 0});
  }
  from_.back().block.count += output.count;
  to_.back().count += output.count;
  add_once(from_.back().after, place.step);
}

void OutputCopies::write(StepBuilder& steps) const {
  for (size_t i = 0; i < from_.size(); ++i) steps.copy(from_[i].block, to_[i], from_[i].after);
}

}  // namespace piper::collective
