#include <piper/base/error.h>
#include <piper/collective/halo_dedup_combine.h>
#include <piper/collective/step_builder.h>

namespace piper::collective {
namespace {

// Rows that are added up: the first result for each is copied, later ones are added, in the order
// of calls.
class RowSum {
 public:
  RowSum(StepBuilder& steps, const Block& sum, int64_t num_rows)
      : steps_(steps), sum_(sum), is_begun_(num_rows, false) {}

  // Row i of source belongs to row rows[i] of the sum. Rows of two calls since `close` are not the
  // same.
  void add(const Block& source, const std::vector<int32_t>& rows, int32_t after) {
    std::vector<RowPair> first, more;
    for (const int32_t row : rows) {
      const RowPair pair{static_cast<int32_t>(first.size() + more.size()), row};
      (is_begun_[row] ? more : first).push_back(pair);
      begun_.push_back(row);
    }
    After waits;
    wait_for(waits, after);
    open_.push_back(steps_.move_rows(StepKind::kCopyRows, source, sum_, first, waits));
    wait_for(waits, before_);
    open_.push_back(steps_.move_rows(StepKind::kAddRows, source, sum_, more, waits));
  }

  // What is added from here on comes after all that was added so far.
  void close() {
    for (const int32_t row : begun_) is_begun_[row] = true;
    begun_.clear();
    open_.push_back(before_);
    before_ = steps_.meet(open_);
    open_.clear();
  }
  int32_t last() const { return before_; }  // after close

 private:
  StepBuilder& steps_;
  Block sum_;
  std::vector<bool> is_begun_;
  std::vector<int32_t> begun_;  // since the last close
  std::vector<int32_t> open_;
  int32_t before_ = -1;
};

class CombineWriter {
 public:
  CombineWriter(int64_t member, const Topology& topology, const DedupKnown& known,
                const Dedup& dedup)
      : member_(member),
        known_(known),
        dedup_(dedup),
        units_(topology, dedup.level),
        begins_(row_begins(member, num_members(topology), known)),
        steps_(member, begins_.back() * dedup.row_count, known.own.num_tokens() * dedup.row_count,
               dedup.row_count) {}

  MemberSteps write() {
    for (const int32_t to : unit_sources(member_, units_)) hand_to(to);
    steps_.set_round(0);
    for (const int32_t to : unit_sources(member_, units_))
      steps_.send(to, 0, input(begins_[to], known_.rows(to).front()));
    const std::vector<int32_t> sources = halo_sources(member_, units_);
    for (size_t i = 0; i < sources.size(); ++i) add_for(i, sources[i]);
    add_own();
    return steps_.take();
  }

 private:
  // Piece p is handed in in round p, beside the exchange inside the unit, and crosses while the
  // next one is.
  static int64_t crossing_round(int64_t p) { return p + 1; }

  Block input(int64_t begin, int64_t num) const {
    return {Buffer::kInput, begin * dedup_.row_count, num * dedup_.row_count};
  }
  Block scratch(int64_t num) { return steps_.scratch(num * dedup_.row_count); }

  // This member's results for all sources whose rows `to` adds up.
  void hand_to(int32_t to) {
    const std::vector<int32_t> sources = halo_sources(to, units_);
    for (size_t i = 0; i < sources.size(); ++i) {
      int64_t begin = begins_[sources[i]];
      const std::vector<int64_t> pieces = known_.rows(sources[i]);
      for (size_t p = 0; p < pieces.size(); ++p) {
        steps_.set_round(static_cast<int64_t>(p));
        steps_.send(to, handed_on_part(i, static_cast<int64_t>(p), dedup_.num_pieces),
                    input(begin, pieces[p]));
        begin += pieces[p];
      }
    }
  }

  // The unit's results for one remote source.
  void add_for(size_t place, int32_t source) {
    const TokenRoutes routes = known_.into_unit(source);
    int64_t own_begin = begins_[source];
    for (int64_t p = 0; p < dedup_.num_pieces; ++p) {
      const RowRange range = piece_rows(routes.num_tokens(), p, dedup_.num_pieces);
      const Block sum = scratch(range.size());
      RowSum rows(steps_, sum, range.size());
      steps_.set_round(p);
      own_begin +=
          add_unit(rows, routes, range, own_begin, handed_on_part(place, p, dedup_.num_pieces));
      After after;
      wait_for(after, rows.last());
      steps_.set_round(crossing_round(p));
      steps_.send(source, static_cast<uint32_t>(p), sum, after);
    }
  }

  // Adds the results of all members of the unit, ascending, for the rows in a range. Returns the
  // number of this member's own, which lie in its input from `own_begin` on.
  int64_t add_unit(RowSum& sum, const TokenRoutes& routes, RowRange range, int64_t own_begin,
                   uint32_t part) {
    int64_t num_own = 0;
    for (const int32_t from : units_.members(units_.unit(member_))) {
      const std::vector<int32_t> rows = rows_for(routes, range, from);
      const auto num = static_cast<int64_t>(rows.size());
      if (from == member_) {
        sum.add(input(own_begin, num), rows, -1);
        num_own = num;
      } else if (num > 0) {
        const Block block = scratch(num);
        sum.add(block, rows, steps_.receive(from, part, block));
      }
      sum.close();
    }
    return num_own;
  }

  // This member's tokens: its own unit first, then one row from each other unit.
  void add_own() {
    const int64_t num = known_.own.num_tokens();
    RowSum sum(steps_, {Buffer::kOutput, 0, num * dedup_.row_count}, num);
    steps_.set_round(0);
    add_unit(sum, known_.own, {0, num}, begins_[member_], 0);
    for (int64_t unit = 0; unit < units_.num_units(); ++unit) {
      if (unit == units_.unit(member_)) continue;
      const std::vector<int32_t> tokens = tokens_into(known_.own, unit, units_);
      for (int64_t p = 0; p < dedup_.num_pieces; ++p) {
        const RowRange range =
            piece_rows(static_cast<int64_t>(tokens.size()), p, dedup_.num_pieces);
        if (range.size() == 0) continue;
        const Block block = scratch(range.size());
        steps_.set_round(crossing_round(p));
        const int32_t received =
            steps_.receive(units_.counterpart(member_, unit), static_cast<uint32_t>(p), block);
        sum.add(block, {tokens.begin() + range.begin, tokens.begin() + range.end}, received);
      }
      sum.close();
    }
  }

  int64_t member_;
  const DedupKnown& known_;
  Dedup dedup_;
  Units units_;
  std::vector<int64_t> begins_;
  StepBuilder steps_;
};

}  // namespace

MemberSteps halo_dedup_combine(int64_t member, const Topology& topology, const DedupKnown& known,
                               const Dedup& dedup) {
  PIPER_CHECK(dedup.num_pieces >= 1, "pieces " + std::to_string(dedup.num_pieces));
  return CombineWriter(member, topology, known, dedup).write();
}

}  // namespace piper::collective
