#include <piper/base/error.h>
#include <piper/collective/all_to_all_halo_chunked.h>
#include <piper/collective/all_to_all_node_aware.h>
#include <piper/collective/step_builder.h>

#include <algorithm>
#include <limits>

namespace piper::collective {
namespace {

struct Piece {
  int32_t target = 0;
  int64_t offset = 0;  // in the row
  int64_t count = 0;
  int64_t index = 0;  // among the row's pieces
};

// One message of phase II.
struct Packet {
  std::vector<Piece> pieces;
  int64_t count = 0;
};

int64_t num_pieces(int64_t count, int64_t chunk) {
  return count / chunk + (count % chunk != 0 ? 1 : 0);
}

// Piece i of num, which differ by one unit at most.
Piece piece_of(int32_t target, int64_t count, int64_t i, int64_t num) {
  const int64_t each = count / num, rest = count % num;
  return {target, i * each + std::min(i, rest), each + (i < rest ? 1 : 0), i};
}

// Cuts the rows from one source to one unit, for the source and for its counterpart alike.
class Cutter {
 public:
  Cutter(const CountOf& count, int64_t chunk) : count_(count), chunk_(chunk) {}

  std::vector<Packet> packets(int64_t from, int64_t counterpart, const Units& units) {
    packets_.clear();
    const std::span<const int32_t> targets = units.members(units.unit(counterpart));
    const bool rotated = !fits(from, targets);
    const size_t first = rotated ? units.place(counterpart) + 1 : 0;
    following_ = -1;
    for (size_t i = 0; i < targets.size(); ++i) {
      const int32_t target = targets[(first + i) % targets.size()];
      append(target, count_(from, target), !(rotated && target == counterpart));
    }
    return std::move(packets_);
  }

 private:
  bool fits(int64_t from, std::span<const int32_t> targets) const {
    int64_t left = chunk_;
    for (const int32_t target : targets) {
      const int64_t count = count_(from, target);
      if (count > left) return false;
      left -= count;
    }
    return true;
  }

  void append(int32_t target, int64_t count, bool may_join) {
    const int64_t num = num_pieces(count, chunk_);
    const bool joins = may_join && num == 1 && target == following_ && !packets_.empty() &&
                       packets_.back().count <= chunk_ - count;
    for (int64_t i = 0; i < num; ++i) {
      if (!joins) packets_.emplace_back();
      packets_.back().pieces.push_back(piece_of(target, count, i, num));
      packets_.back().count += packets_.back().pieces.back().count;
    }
    if (num > 0 || target == following_) following_ = target + 1;
  }

  const CountOf& count_;
  int64_t chunk_;
  int32_t following_ = -1;  // whose row lies behind the last packet in the input
  std::vector<Packet> packets_;
};

class ChunkWriter {
 public:
  ChunkWriter(int64_t member, const Topology& topology, const CountOf& count,
              const HaloChunks& options)
      : member_(member),
        count_(count),
        options_(options),
        units_(topology, options.level),
        cutter_(count, options.chunk),
        steps_(member, collective::num_members(topology), count),
        part_(units_.size(units_.unit(member))) {}

  MemberSteps write() {
    for (const int32_t source : halo_sources(member_, units_)) take_in(source);
    receive_handed_on();
    for (const int32_t unit : units_from(member_, units_)) send_to(unit);
    exchange_inside();
    hand_on();
    return steps_.take();
  }

 private:
  // What of a packet is for somebody else than this member.
  struct Arrived {
    int32_t step;
    Block block;
    Packet packet;
    int32_t source;
  };

  // The round in which a piece is handed on by `counterpart`: one more than the number of its
  // packet, as its target, who knows of the source's rows its own alone, can guess it. Exact for
  // even counts and members whose numbers follow each other.
  int64_t handed_on_round(int32_t source, int64_t counterpart, const Piece& piece) const {
    const int64_t size = units_.size(units_.unit(counterpart));
    const int64_t order =
        (units_.place(piece.target) - units_.place(counterpart) - 1 + size) % size;
    const int64_t count = count_(source, piece.target), num = num_pieces(count, options_.chunk);
    return 1 + (num > 1 ? order * num + piece.index : order / (options_.chunk / count));
  }
  // That in which a packet crosses: just before the first of its pieces is handed on.
  int64_t crossing_round(int32_t source, int64_t counterpart, const Packet& packet) const {
    int64_t first = std::numeric_limits<int64_t>::max();
    for (const Piece& piece : packet.pieces)
      first = std::min(first, handed_on_round(source, counterpart, piece) - 1);
    return first;
  }

  // Phase II, receiving.
  void take_in(int32_t source) {
    uint32_t part = 0;
    for (Packet& packet : cutter_.packets(source, member_, units_)) {
      const Piece& first = packet.pieces.front();
      const bool is_own = packet.pieces.size() == 1 && first.target == member_;
      const Block block = is_own ? output(source, first) : steps_.scratch(packet.count);
      steps_.set_round(crossing_round(source, member_, packet));
      const int32_t step = steps_.receive(source, part++, block);
      taken_in_.push_back(step);
      if (!is_own) arrived_.push_back({step, block, std::move(packet), source});
    }
  }

  void send_to(int32_t unit) {
    uint32_t part = 0;
    const int32_t counterpart = units_.counterpart(member_, unit);
    for (const Packet& packet : cutter_.packets(member_, counterpart, units_)) {
      const Piece& first = packet.pieces.front();
      const int64_t offset = steps_.sent(first.target).offset + first.offset;
      steps_.set_round(crossing_round(static_cast<int32_t>(member_), counterpart, packet));
      steps_.send(counterpart, part++, {Buffer::kInput, offset, packet.count});
    }
  }

  void exchange_inside() {
    const int32_t all = options_.phase_one == PhaseOne::kUnderThree ? steps_.meet(taken_in_) : -1;
    const After after = all >= 0 ? After{all} : After{};
    // What the others of the unit wait for is not known here.
    steps_.set_round(
        options_.phase_one == PhaseOne::kUnderThree ? std::numeric_limits<int32_t>::max() : 0);
    for (const int32_t from : unit_sources(member_, units_)) steps_.receive_row(from, after);
    for (const int32_t to : unit_targets(member_, units_)) steps_.send_row(to, after);
    steps_.copy_own_row();
  }

  // Phase III, receiving: pieces from one counterpart are numbered in its order of sources, behind
  // the row of phase I.
  void receive_handed_on() {
    for (const int32_t from : unit_sources(member_, units_)) {
      uint32_t part = 0;
      for (const int32_t source : halo_sources(from, units_)) {
        const int64_t count = count_(source, member_), num = num_pieces(count, options_.chunk);
        for (int64_t i = 0; i < num; ++i) {
          const Piece piece = piece_of(static_cast<int32_t>(member_), count, i, num);
          steps_.set_round(handed_on_round(source, from, piece));
          steps_.receive(from, ++part, output(source, piece));
        }
      }
    }
  }

  void hand_on() {
    for (const Arrived& arrived : arrived_) {
      Block block = arrived.block;
      for (const Piece& piece : arrived.packet.pieces) {
        block.count = piece.count;
        steps_.set_round(handed_on_round(arrived.source, member_, piece));
        if (piece.target == member_)
          steps_.copy(block, output(arrived.source, piece), {arrived.step});
        else
          steps_.send(piece.target, ++part_[units_.place(piece.target)], block, {arrived.step});
        block.offset += piece.count;
      }
    }
  }

  Block output(int32_t source, const Piece& piece) const {
    return {Buffer::kOutput, steps_.received(source).offset + piece.offset, piece.count};
  }

  int64_t member_;
  const CountOf& count_;
  HaloChunks options_;
  Units units_;
  Cutter cutter_;
  StepBuilder steps_;
  std::vector<uint32_t> part_;  // by place in the unit: the last one handed on
  std::vector<int32_t> taken_in_;
  std::vector<Arrived> arrived_;
};

}  // namespace

MemberSteps all_to_all_halo_chunked(int64_t member, const Topology& topology, const CountOf& count,
                                    const HaloChunks& options) {
  PIPER_CHECK(options.chunk >= 1, "chunk " + std::to_string(options.chunk));
  if (Units(topology, options.level).num_units() == 1)
    return all_to_all_node_aware(member, topology, count);
  return ChunkWriter(member, topology, count, options).write();
}

}  // namespace piper::collective
