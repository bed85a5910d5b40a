#include <piper/collective/all_to_all_bruck.h>
#include <piper/collective/row_runs.h>
#include <piper/collective/step_builder.h>

#include <algorithm>

namespace piper::collective {
namespace {

class BruckWriter {
 public:
  BruckWriter(int64_t member, int64_t num_members, const CountOf& count)
      : member_(member), n_(num_members), count_(count), steps_(member, num_members, count) {
    places_.reserve(n_);
    for (int64_t d = 0; d < n_; ++d) places_.push_back({steps_.sent(modulo(member_ - d)), -1});
  }

  MemberSteps write() {
    steps_.copy_own_row();
    for (int64_t bit = 1; bit < n_; bit *= 2)
      staged_ = std::max(staged_, round_total(member_, bit));
    staging_ = steps_.scratch(staged_);
    for (int64_t bit = 1; bit < n_; bit *= 2) round(bit);
    deliver();
    return steps_.take();
  }

 private:
  int64_t modulo(int64_t member) const { return (member % n_ + n_) % n_; }

  // The row of distance d that lies at `holder` before the round of `bit`.
  int64_t row_count(int64_t holder, int64_t d, int64_t bit) const {
    const int64_t source = modulo(holder + d % bit);
    return count_(source, modulo(source - d));
  }

  int64_t round_total(int64_t holder, int64_t bit) const {
    int64_t sum = 0;
    for (int64_t d = bit; d < n_; ++d)
      if (d & bit) sum += row_count(holder, d, bit);
    return sum;
  }

  void round(int64_t bit) {
    steps_.set_round(part_);
    std::vector<Run> runs;
    for (int64_t d = bit; d < n_; ++d)
      if (d & bit) append(runs, places_[d]);
    const Run source = runs.size() == 1 ? runs.front() : packed(runs);
    After after = source.after;
    after.append(before_.begin(), before_.end());
    const int32_t sent = steps_.send(modulo(member_ - bit), part_, source.block, after);
    const int32_t received = receive(bit);
    if (sent >= 0) last_sent_ = sent;
    if (received >= 0) last_received_ = received;
    before_.clear();
    wait_for(before_, last_sent_);
    wait_for(before_, last_received_);
  }

  // Into the staging area, which the round before has left.
  Run packed(const std::vector<Run>& runs) {
    Run result{{Buffer::kScratch, staging_.offset, 0}, {}};
    for (const Run& run : runs) {
      const Block to{Buffer::kScratch, staging_.offset + result.block.count, run.block.count};
      After after = run.after;
      for (const int32_t step : before_) add_once(after, step);
      wait_for(result.after, steps_.copy(run.block, to, after));
      result.block.count += to.count;
    }
    return result;
  }

  int32_t receive(int64_t bit) {
    const int64_t from = modulo(member_ + bit);
    Block block = steps_.scratch(round_total(from, bit));
    const int32_t step = steps_.receive(from, part_++, block, before_);
    for (int64_t d = bit; d < n_; ++d) {
      if (!(d & bit)) continue;
      block.count = row_count(from, d, bit);
      places_[d] = {block, step};
      block.offset += block.count;
    }
    return step;
  }

  void deliver() {
    OutputCopies copies;
    for (int64_t source = 0; source < n_; ++source)
      if (source != member_) copies.add(places_[modulo(source - member_)], steps_.received(source));
    copies.write(steps_);
  }

  int64_t member_, n_;
  const CountOf& count_;
  StepBuilder steps_;
  std::vector<Place> places_;  // by distance: where the row lies that is here now
  int64_t staged_ = 0;
  Block staging_;
  int32_t last_sent_ = -1, last_received_ = -1;  // a round may have neither
  After before_;                                 // both of them
  uint32_t part_ = 0;
};

}  // namespace

MemberSteps all_to_all_bruck(int64_t member, const Topology& topology, const CountOf& count) {
  return BruckWriter(member, num_members(topology), count).write();
}

std::vector<int32_t> bruck_counts_told(int64_t from, int64_t to, int64_t num_members) {
  const int64_t done = ((from - to) % num_members + num_members) % num_members;
  int64_t bit = 1;
  while (bit <= done) bit *= 2;
  std::vector<int32_t> targets;
  for (int64_t d = done == 0 ? 0 : done; d < num_members; d += bit)
    targets.push_back(static_cast<int32_t>(((from - d) % num_members + num_members) % num_members));
  std::sort(targets.begin(), targets.end());
  return targets;
}

}  // namespace piper::collective
