#include <piper/base/error.h>
#include <piper/collective/all_reduce_direct.h>

#include <algorithm>
#include <utility>

namespace piper::collective {
namespace {

constexpr int64_t kReduceSlots = 2;

// Piece p travels as part 2p to its owner and, summed, as part 2p + 1 to everyone.
uint32_t scatter_part(int64_t p) { return static_cast<uint32_t>(2 * p); }
uint32_t gather_part(int64_t p) { return static_cast<uint32_t>(2 * p + 1); }

// Writes one member's list.
class AllReduceWriter {
 public:
  AllReduceWriter(int64_t member, int64_t num_members, int64_t count, int64_t piece)
      : member_(member), n_(num_members), count_(count), piece_(piece), sent_(num_members) {
    const int64_t own = share(member_).count;
    slot_piece_ = std::min(piece_, own);
    result_.output_count = count;
    result_.scratch_count = std::min(kReduceSlots, num_pieces(member_)) * (n_ - 1) * slot_piece_;
  }

  MemberSteps write() {
    if (n_ == 1) return std::move(result_);
    // Everything that leaves is posted at once: an owner then never waits for a member that
    // computes.
    for (int64_t distance = 1; distance < n_; ++distance) send_values((member_ + distance) % n_);
    for (int64_t p = 0; p < num_pieces(member_); ++p) reduce(p);
    for (int64_t distance = 1; distance < n_; ++distance)
      receive_sums((member_ - distance + n_) % n_);
    return std::move(result_);
  }

 private:
  Block share(int64_t member) const { return reduce_share(member, n_, count_); }
  int64_t num_pieces(int64_t member) const {
    const int64_t count = share(member).count;
    return std::max<int64_t>(1, count / piece_ + (count % piece_ != 0 ? 1 : 0));
  }
  Block piece(int64_t member, int64_t p) const {
    const Block whole = share(member);
    const int64_t offset =
        p == 0 ? 0 : p * piece_;  // a whole share times nothing must not overflow
    return {whole.buffer, whole.offset + offset, std::min(piece_, whole.count - offset)};
  }
  // Where `peer`'s values of our piece p wait.
  Block scratch(int64_t peer, int64_t p) const {
    const int64_t index = (p % kReduceSlots) * (n_ - 1) + (peer < member_ ? peer : peer - 1);
    return {Buffer::kScratch, index * slot_piece_, piece(member_, p).count};
  }

  int32_t push(Step step) {
    result_.steps.push_back(std::move(step));
    return static_cast<int32_t>(result_.steps.size()) - 1;
  }

  void send_values(int64_t peer) {
    for (int64_t p = 0; p < num_pieces(peer); ++p)
      sent_[peer].push_back(push({.kind = StepKind::kSend,
                                  .peer = static_cast<int32_t>(peer),
                                  .part = scatter_part(p),
                                  .round = static_cast<int32_t>(p),
                                  .source = piece(peer, p)}));
  }

  // Receives, adds and sends one piece of our share.
  void reduce(int64_t p) {
    std::vector<int32_t> received(n_, -1);
    for (int64_t distance = 1; distance < n_; ++distance) {
      const int64_t peer = (member_ - distance + n_) % n_;
      received[peer] = push({.kind = StepKind::kReceive,
                             .peer = static_cast<int32_t>(peer),
                             .part = scatter_part(p),
                             .round = static_cast<int32_t>(p),
                             .target = scratch(peer, p)});
      if (p >= kReduceSlots) result_.steps.back().after = {sums_[p - kReduceSlots]};
    }
    sums_.push_back(add(p, received));
    for (int64_t distance = 1; distance < n_; ++distance)
      push({.kind = StepKind::kSend,
            .peer = static_cast<int32_t>((member_ + distance) % n_),
            .part = gather_part(p),
            .round = static_cast<int32_t>(p + 1),
            .source = piece(member_, p),
            .after = {sums_[p]}});
  }

  // The chain of additions; returns its last step, after which our piece is the sum.
  int32_t add(int64_t p, const std::vector<int32_t>& received) {
    int32_t last = -1;
    const auto chain = [&](Block source, Block target, int64_t peer) {
      std::vector<int32_t> after{received[peer]};
      if (last >= 0) after.push_back(last);
      last = push({.kind = StepKind::kAdd, .source = source, .target = target, .after = after});
    };
    const Block own = piece(member_, p);
    if (member_ > 1) {
      chain(scratch(1, p), scratch(0, p), 1);
      result_.steps[last].after.push_back(received[0]);
    }
    for (int64_t peer = 2; peer < member_; ++peer) chain(scratch(peer, p), scratch(0, p), peer);
    if (member_ > 0) chain(scratch(0, p), own, 0);
    for (int64_t peer = member_ + 1; peer < n_; ++peer) chain(scratch(peer, p), own, peer);
    return last;
  }

  // A sum lands where our values of that piece were: they must have left.
  void receive_sums(int64_t peer) {
    for (int64_t p = 0; p < num_pieces(peer); ++p)
      push({.kind = StepKind::kReceive,
            .peer = static_cast<int32_t>(peer),
            .part = gather_part(p),
            .round = static_cast<int32_t>(p + 1),
            .target = piece(peer, p),
            .after = {sent_[peer][p]}});
  }

  int64_t member_, n_, count_, piece_, slot_piece_ = 0;
  std::vector<std::vector<int32_t>> sent_;  // by peer and piece: the step that sends our values
  std::vector<int32_t> sums_;               // by piece: the step that completes the sum
  MemberSteps result_;
};

}  // namespace

Block reduce_share(int64_t member, int64_t num_members, int64_t count) {
  const int64_t each = count / num_members, rest = count % num_members;
  return {Buffer::kOutput, member * each + std::min(member, rest), each + (member < rest ? 1 : 0)};
}

MemberSteps all_reduce_direct(int64_t member, int64_t num_members, int64_t count, int64_t piece) {
  PIPER_CHECK(member >= 0 && member < num_members && count >= 0 && piece >= 1);
  return AllReduceWriter(member, num_members, count, piece).write();
}

}  // namespace piper::collective
