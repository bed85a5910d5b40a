#include <fmt/core.h>
#include <piper/base/error.h>
#include <piper/collective/step_builder.h>

namespace piper::collective {
namespace {

void append(std::vector<int64_t>& begins, int64_t count, int64_t from, int64_t to) {
  int64_t end = 0;
  PIPER_CHECK(count >= 0 && !__builtin_add_overflow(begins.back(), count, &end),
              fmt::format("{} units from member {} to member {}", count, from, to));
  begins.push_back(end);
}

}  // namespace

StepBuilder::StepBuilder(int64_t member, int64_t num_members, const CountOf& count)
    : member_(member), sent_{0}, received_{0} {
  PIPER_CHECK(member >= 0 && member < num_members,
              fmt::format("member {} of {}", member, num_members));
  sent_.reserve(num_members + 1);
  received_.reserve(num_members + 1);
  for (int64_t other = 0; other < num_members; ++other) {
    append(sent_, count(member, other), member, other);
    append(received_, count(other, member), other, member);
  }
  result_.input_count = sent_.back();
  result_.output_count = received_.back();
}

StepBuilder::StepBuilder(int64_t member, int64_t input_count, int64_t output_count,
                         int64_t row_count)
    : member_(member),
      result_{.input_count = input_count, .output_count = output_count, .row_count = row_count} {
  PIPER_CHECK(input_count >= 0 && output_count >= 0 && row_count >= 0);
}

Block StepBuilder::scratch(int64_t count) {
  const Block block{Buffer::kScratch, result_.scratch_count, count};
  PIPER_CHECK(!__builtin_add_overflow(result_.scratch_count, count, &result_.scratch_count),
              "scratch beyond 64 bits");
  return block;
}

int32_t StepBuilder::push(Step step) {
  result_.steps.push_back(std::move(step));
  return static_cast<int32_t>(result_.steps.size()) - 1;
}

int32_t StepBuilder::send(int64_t to, uint32_t part, const Block& source, After after) {
  if (source.count == 0) return -1;
  return push({.kind = StepKind::kSend,
               .peer = static_cast<int32_t>(to),
               .part = part,
               .round = round_,
               .source = source,
               .after = std::move(after)});
}

int32_t StepBuilder::receive(int64_t from, uint32_t part, const Block& target, After after) {
  if (target.count == 0) return -1;
  return push({.kind = StepKind::kReceive,
               .peer = static_cast<int32_t>(from),
               .part = part,
               .round = round_,
               .target = target,
               .after = std::move(after)});
}

int32_t StepBuilder::copy(const Block& source, const Block& target, After after) {
  PIPER_CHECK(source.count == target.count);
  if (source.count == 0) return -1;
  return push(
      {.kind = StepKind::kCopy, .source = source, .target = target, .after = std::move(after)});
}

int32_t StepBuilder::add(const Block& source, const Block& target, After after) {
  PIPER_CHECK(source.count == target.count);
  if (source.count == 0) return -1;
  return push(
      {.kind = StepKind::kAdd, .source = source, .target = target, .after = std::move(after)});
}

int32_t StepBuilder::move_rows(StepKind kind, const Block& source, const Block& target,
                               const std::vector<RowPair>& pairs, After after) {
  if (pairs.empty()) return -1;
  std::vector<RowPair>& all = result_.row_pairs;
  const auto first = static_cast<int32_t>(all.size());
  all.insert(all.end(), pairs.begin(), pairs.end());
  return push({.kind = kind,
               .first_row = first,
               .num_rows = static_cast<int32_t>(pairs.size()),
               .source = source,
               .target = target,
               .after = std::move(after)});
}

int32_t StepBuilder::meet(const std::vector<int32_t>& steps) {
  After after;
  for (const int32_t step : steps) wait_for(after, step);
  if (after.size() <= 1) return after.empty() ? -1 : after[0];
  return push({.kind = StepKind::kCopy,
               .source = {Buffer::kInput, 0, 0},
               .target = {Buffer::kOutput, 0, 0},
               .after = std::move(after)});
}

}  // namespace piper::collective
