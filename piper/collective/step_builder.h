// What writers of exchanges share: where the rows of every pair lie, and a list to append to.
//
// The input of a member holds what it has for member 0, then for member 1, ... back to back; its
// output what comes from member 0, from member 1, ...
//
//   input of 1:   | 1->0 | 1->1 | 1->2 |        output of 1:   | 0->1 | 1->1 | 2->1 |
#pragma once

#include <piper/collective/steps.h>
#include <piper/collective/topology.h>

#include <cstdint>
#include <vector>

namespace piper::collective {

class StepBuilder {
 public:
  // Asks for counts (member, *) and (*, member). Requires counts that are not negative and sums
  // that fit 64 bits.
  StepBuilder(int64_t member, int64_t num_members, const CountOf& count);

  // Without rows of pairs: buffers of the caller's layout, in which rows of `row_count` units move.
  StepBuilder(int64_t member, int64_t input_count, int64_t output_count, int64_t row_count = 0);

  int64_t member() const { return member_; }
  int64_t num_members() const { return static_cast<int64_t>(sent_.size()) - 1; }

  // What goes to a member, in the input; what comes from one, in the output.
  Block sent(int64_t to) const { return {Buffer::kInput, sent_[to], sent_[to + 1] - sent_[to]}; }
  Block received(int64_t from) const {
    return {Buffer::kOutput, received_[from], received_[from + 1] - received_[from]};
  }

  // A new piece of scratch.
  Block scratch(int64_t count);

  // Sets Step::round of the messages that follow; it is zero at the start.
  void set_round(int64_t round) { round_ = static_cast<int32_t>(round); }

  // The number of the new step, or -1 for nothing: an empty block is no message, which both sides
  // know, and no copy.
  int32_t send(int64_t to, uint32_t part, const Block& source, After after = {});
  int32_t receive(int64_t from, uint32_t part, const Block& target, After after = {});
  int32_t copy(const Block& source, const Block& target, After after = {});
  int32_t add(const Block& source, const Block& target, After after = {});
  // kCopyRows or kAddRows; -1 for no pairs.
  int32_t move_rows(StepKind kind, const Block& source, const Block& target,
                    const std::vector<RowPair>& pairs, After after = {});
  // A step that has finished when these have; never -1, unless there is nothing to wait for.
  int32_t meet(const std::vector<int32_t>& steps);

  // Straight from input to output.
  int32_t send_row(int64_t to, After after = {}) { return send(to, 0, sent(to), std::move(after)); }
  int32_t receive_row(int64_t from, After after = {}) {
    return receive(from, 0, received(from), std::move(after));
  }
  int32_t copy_own_row() { return copy(sent(member_), received(member_)); }

  MemberSteps take() { return std::move(result_); }

 private:
  int32_t push(Step step);

  int64_t member_;
  int32_t round_ = 0;
  std::vector<int64_t> sent_, received_;  // by member: where its row begins; one more at the end
  MemberSteps result_;
};

// Appends a step that may not be there (-1).
inline void wait_for(After& after, int32_t step) {
  if (step >= 0) after.push_back(step);
}

}  // namespace piper::collective
