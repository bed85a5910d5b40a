// What a process of the run may say over the wire of its messages, all of it hostile, while ranks
// here post, drop and wait. The bytes are a programme: who posts what, what the peer says
// (well-formed notes and chunks with chosen numbers, or raw bytes), and when this end looks. No
// byte lands outside of a buffer that is in use, and in the end no message is in use.
#include <piper/base/error.h>
#include <testing/comm/peer_fixture.h>

#include <algorithm>

#include "fuzz.h"

namespace piper::fuzz {
namespace {

using comm::ByteReader;
using comm::internal::Direction;
using comm::internal::PeerFixture;
using comm::internal::PostingState;

constexpr size_t kMaxSteps = 200, kMaxMine = 32;

// Small numbers meet each other, large ones overflow.
uint64_t size_of(ByteReader& in) {
  const auto choice = in.number<uint8_t>();
  if (choice < 200) return choice;
  if (choice < 240) return uint64_t{64} * choice;
  if (choice < 250) return uint64_t{20'000} * (choice - 239);
  return in.number<uint64_t>();
}

class Programme {
 public:
  explicit Programme(std::span<const std::byte> bytes) : in_(bytes) {}

  void execute() {
    for (size_t step = 0; step < kMaxSteps && in_.ok() && !in_.rest().empty(); ++step) step_once();
    peer_.execute();
    peer_.protocol().state().fail(Rank(0), "it is over");
    for (auto& mine : mine_) FUZZ_CHECK(mine == nullptr || peer_.drop(mine));
  }

 private:
  void step_once() {
    switch (in_.number<uint8_t>() % 8) {
      case 0:
        return post(Direction::kReceive);
      case 1:
        return post(Direction::kSend);
      case 2:
        return drop();
      case 3:
        return note();
      case 4:
        return chunk();
      case 5:
        return say(in_.number<uint8_t>());
      case 6:
        return peer_.say(in_.raw(std::min<size_t>(in_.number<uint8_t>(), in_.rest().size())));
      case 7:
        return peer_.execute();
    }
  }

  void post(Direction direction) {
    const Rank owner(in_.number<uint8_t>() % 2), other(2 + in_.number<uint8_t>() % 2);
    const uint64_t key = in_.number<uint8_t>() % 8, size = size_of(in_);
    if (mine_.size() >= kMaxMine || size > (1 << 20)) return;
    try {
      mine_.push_back(peer_.post(direction, owner, other, key, 0, size));
    } catch (const InternalError&) {  // posted twice, by us
    }
  }

  void drop() {
    if (mine_.empty()) return;
    auto& mine = mine_[in_.number<uint8_t>() % mine_.size()];
    if (mine != nullptr) peer_.drop(mine);
  }

  void note() {
    comm::MessageHead head;
    head.kind = static_cast<comm::NoteKind>(1 + in_.number<uint8_t>() % 6);
    head.source = Rank(2 + in_.number<uint8_t>() % 4 % 3);
    head.target = Rank(in_.number<uint8_t>() % 2);
    head.key = in_.number<uint8_t>() % 8;
    head.id = in_.number<uint8_t>() % 8;
    head.size = size_of(in_);
    head.what = "x";
    const bool carries = head.kind == comm::NoteKind::kEager && head.size <= (1 << 20);
    const bool large = in_.number<uint8_t>() % 2 == 1;
    peer_.say_note(head, std::vector<std::byte>(carries ? head.size : 0),
                   large ? PeerFixture::By::kLarge : PeerFixture::By::kSmall);
  }

  void chunk() {
    const auto size = static_cast<uint32_t>(size_of(in_));
    const uint64_t id = in_.number<uint8_t>() % 8;
    peer_.say_chunk(size, id);
    say(std::min<size_t>(size, size_of(in_)));
  }

  void say(size_t size) {
    peer_.say(std::vector<std::byte>(std::min<size_t>(size, 1 << 20), std::byte{0x5a}));
  }

  ByteReader in_;
  PeerFixture peer_;
  std::vector<std::unique_ptr<PeerFixture::Mine>> mine_;
};

}  // namespace

void fuzz(std::span<const std::byte> bytes) { Programme(bytes).execute(); }

}  // namespace piper::fuzz
