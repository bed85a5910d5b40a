#include <piper/base/error.h>
#include <piper/collective/halo_dedup_dispatch.h>
#include <piper/collective/step_builder.h>

namespace piper::collective {
namespace {

class DispatchWriter {
 public:
  DispatchWriter(int64_t member, const Topology& topology, const DedupKnown& known,
                 const Dedup& dedup)
      : member_(member),
        known_(known),
        dedup_(dedup),
        units_(topology, dedup.level),
        begins_(row_begins(member, num_members(topology), known)),
        steps_(member, known.own.num_tokens() * dedup.row_count, begins_.back() * dedup.row_count,
               dedup.row_count) {}

  MemberSteps write() {
    receive_handed_on();
    steps_.set_round(0);
    for (const int32_t from : unit_sources(member_, units_))
      steps_.receive(from, 0, output(begins_[from], known_.rows(from).front()));
    const std::vector<int32_t> sources = halo_sources(member_, units_);
    std::vector<Arrived> arrived;
    for (size_t i = 0; i < sources.size(); ++i) take_in(i, sources[i], arrived);
    for (const int32_t unit : units_from(member_, units_)) send_to(unit);
    for (const int32_t to : unit_targets(member_, units_)) send_inside(to);
    keep_own();
    for (const Arrived& piece : arrived) hand_on(piece);
    return steps_.take();
  }

 private:
  struct Arrived {
    int32_t step;
    size_t source;  // its place among halo_sources
    int64_t piece;
    Block block;
    TokenRoutes routes;
    int64_t own_begin;  // in this member's output: where its rows of this piece begin
  };

  // Piece p crosses in round p, beside the exchange inside the unit; the next one crosses while it
  // is handed on.
  static int64_t handed_on_round(int64_t p) { return p + 1; }

  Block rows(Buffer buffer, int64_t begin, int64_t num) const {
    return {buffer, begin * dedup_.row_count, num * dedup_.row_count};
  }
  Block output(int64_t begin, int64_t num) const { return rows(Buffer::kOutput, begin, num); }
  Block tokens() const { return rows(Buffer::kInput, 0, known_.own.num_tokens()); }

  void receive_handed_on() {
    for (const int32_t from : unit_sources(member_, units_)) {
      const std::vector<int32_t> sources = halo_sources(from, units_);
      for (size_t i = 0; i < sources.size(); ++i) {
        int64_t begin = begins_[sources[i]];
        const std::vector<int64_t> pieces = known_.rows(sources[i]);
        for (size_t p = 0; p < pieces.size(); ++p) {
          steps_.set_round(handed_on_round(static_cast<int64_t>(p)));
          steps_.receive(from, handed_on_part(i, static_cast<int64_t>(p), dedup_.num_pieces),
                         output(begin, pieces[p]));
          begin += pieces[p];
        }
      }
    }
  }

  void take_in(size_t place, int32_t source, std::vector<Arrived>& arrived) {
    const TokenRoutes all = known_.into_unit(source);
    int64_t begin = begins_[source];
    for (int64_t p = 0; p < dedup_.num_pieces; ++p) {
      const RowRange range = piece_rows(all.num_tokens(), p, dedup_.num_pieces);
      TokenRoutes routes;
      for (int64_t row = range.begin; row < range.end; ++row) routes.add(all.of(row));
      const auto own = static_cast<int64_t>(mine(routes).size());
      // A piece that is for this member alone arrives where it stays.
      const bool is_own = routes.targets.size() == static_cast<size_t>(own);
      const Block block =
          is_own ? output(begin, own) : steps_.scratch(range.size() * dedup_.row_count);
      steps_.set_round(p);
      const int32_t step = steps_.receive(source, static_cast<uint32_t>(p), block);
      if (!is_own) arrived.push_back({step, place, p, block, std::move(routes), begin});
      begin += own;
    }
  }

  std::vector<int32_t> mine(const TokenRoutes& routes) const {
    return rows_for(routes, {0, routes.num_tokens()}, static_cast<int32_t>(member_));
  }

  void send_to(int32_t unit) {
    const std::vector<int32_t> all = tokens_into(known_.own, unit, units_);
    for (int64_t p = 0; p < dedup_.num_pieces; ++p) {
      const RowRange range = piece_rows(static_cast<int64_t>(all.size()), p, dedup_.num_pieces);
      steps_.set_round(p);
      send_picked(units_.counterpart(member_, unit), static_cast<uint32_t>(p), tokens(),
                  {all.begin() + range.begin, all.begin() + range.end}, {});
    }
  }

  void send_inside(int32_t to) {
    steps_.set_round(0);
    send_picked(to, 0, tokens(), rows_for(known_.own, {0, known_.own.num_tokens()}, to), {});
  }

  void keep_own() {
    std::vector<RowPair> pairs;
    for (const int32_t token : mine(known_.own))
      pairs.push_back({token, static_cast<int32_t>(pairs.size())});
    steps_.move_rows(StepKind::kCopyRows, tokens(),
                     output(begins_[member_], static_cast<int64_t>(pairs.size())), pairs);
  }

  void hand_on(const Arrived& piece) {
    const RowRange all{0, piece.routes.num_tokens()};
    steps_.set_round(handed_on_round(piece.piece));
    for (const int32_t to : unit_targets(member_, units_))
      send_picked(to, handed_on_part(piece.source, piece.piece, dedup_.num_pieces), piece.block,
                  rows_for(piece.routes, all, to), {piece.step});
    std::vector<RowPair> pairs;
    for (const int32_t row : mine(piece.routes))
      pairs.push_back({row, static_cast<int32_t>(pairs.size())});
    steps_.move_rows(StepKind::kCopyRows, piece.block,
                     output(piece.own_begin, static_cast<int64_t>(pairs.size())), pairs,
                     {piece.step});
  }

  // Sends some rows of a block: from where they lie, or packed.
  void send_picked(int64_t to, uint32_t part, const Block& block, std::vector<int32_t> picked,
                   After after) {
    const auto num = static_cast<int64_t>(picked.size());
    if (num == 0) return;
    if (picked.back() - picked.front() + 1 == num) {
      const int64_t offset = block.offset + picked.front() * dedup_.row_count;
      steps_.send(to, part, {block.buffer, offset, num * dedup_.row_count}, std::move(after));
      return;
    }
    const Block packed = steps_.scratch(num * dedup_.row_count);
    std::vector<RowPair> pairs;
    for (const int32_t row : picked) pairs.push_back({row, static_cast<int32_t>(pairs.size())});
    const int32_t copy =
        steps_.move_rows(StepKind::kCopyRows, block, packed, pairs, std::move(after));
    steps_.send(to, part, packed, {copy});
  }

  int64_t member_;
  const DedupKnown& known_;
  Dedup dedup_;
  Units units_;
  std::vector<int64_t> begins_;
  StepBuilder steps_;
};

}  // namespace

MemberSteps halo_dedup_dispatch(int64_t member, const Topology& topology, const DedupKnown& known,
                                const Dedup& dedup) {
  PIPER_CHECK(dedup.num_pieces >= 1, "pieces " + std::to_string(dedup.num_pieces));
  return DispatchWriter(member, topology, known, dedup).write();
}

}  // namespace piper::collective
