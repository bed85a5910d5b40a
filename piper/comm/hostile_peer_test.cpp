// What a process that knows the run's secret may say, and what comes of it when it lies.
#include <doctest/doctest.h>
#include <testing/comm/peer_fixture.h>

namespace piper::comm::internal {
namespace {

constexpr size_t kSize = 1000;  // of messages: offered, as the tests say so

MessageHead head(NoteKind kind, uint64_t id = 7, uint64_t size = kSize) {
  return {.kind = kind,
          .source = Rank(2),
          .target = Rank(0),
          .key = 5,
          .size = size,
          .id = id,
          .what = "exchange"};
}

std::unique_ptr<PeerFixture::Mine> receive(PeerFixture& peer, uint64_t key = 5,
                                           size_t size = kSize) {
  return peer.post(Direction::kReceive, Rank(0), Rank(2), key, 0, size);
}

std::vector<std::byte> hostile_bytes(size_t count, int value = 0x5a) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

TEST_CASE("an offered message arrives in pieces, whatever the sizes of the pieces") {
  PeerFixture peer;
  const auto mine = receive(peer);
  peer.say_note(head(NoteKind::kOffer));
  peer.execute();
  CHECK(mine->state() == PostingState::kCopying);
  for (const uint32_t size : {1, 0, 499, 500}) {
    peer.say_chunk(size, 7);
    peer.say(hostile_bytes(size));
    peer.execute();
  }
  CHECK(mine->state() == PostingState::kDone);
  CHECK(mine->buffer == hostile_bytes(kSize));
  CHECK(peer.lost() == "");
}

TEST_CASE("who withdraws an offer before any of it has come is believed") {
  PeerFixture peer;
  auto mine = receive(peer);
  peer.say_note(head(NoteKind::kOffer));
  peer.say_note(head(NoteKind::kGone));
  peer.execute();
  CHECK(mine->state() == PostingState::kWaiting);
  CHECK(peer.drop(mine));
  CHECK(peer.lost() == "");
}

TEST_CASE(
    "who withdraws a message of which a part has come writes into no buffer that was let go") {
  PeerFixture peer;
  auto mine = receive(peer);
  peer.say_note(head(NoteKind::kOffer));
  peer.execute();
  // The head of a chunk and half of its bytes; the rest comes after the withdrawal, which takes the
  // other connection.
  peer.say_chunk(kSize, 7);
  peer.say(hostile_bytes(kSize / 2));
  peer.execute();
  peer.say_note(head(NoteKind::kGone));
  peer.execute();
  CHECK(peer.lost() == "it withdraws a message of which it has sent a part");
  CHECK_FALSE(peer.drop(mine));  // in use until all is over
  peer.say(hostile_bytes(kSize / 2));
  peer.execute();
}

TEST_CASE("one number for two messages is refused, and nobody waits for the second for ever") {
  PeerFixture peer;
  const auto one = receive(peer, 5), two = receive(peer, 6);
  peer.say_note(head(NoteKind::kOffer));
  MessageHead second = head(NoteKind::kOffer);
  second.key = 6;
  peer.say_note(second);
  peer.execute();
  CHECK(peer.lost() == "it gave two messages one number");
  CHECK(two->state() == PostingState::kWithdrawn);
}

TEST_CASE("credit is given back for what was sent, and no more") {
  for (const uint64_t size : {uint64_t{1}, uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}}) {
    PeerFixture peer;
    peer.say_note(head(NoteKind::kCredit, 0, size));
    peer.execute();
    CHECK(peer.lost() == "it gave back more bytes than it was sent");
  }
  PeerFixture peer;
  const auto sent = peer.post(Direction::kSend, Rank(0), Rank(2), 5, 0, kSize);
  CHECK(sent->state() == PostingState::kDone);  // eagerly
  peer.say_note(head(NoteKind::kCredit, 0, kSize + 256));
  peer.execute();
  CHECK(peer.lost() == "");
}

TEST_CASE("early messages fill no more memory than a process has credit") {
  PeerFixture peer;
  const auto payload = hostile_bytes(200'000);
  for (uint64_t key = 0; key < 5; ++key) {
    MessageHead early = head(NoteKind::kEager, key, payload.size());
    early.key = key;
    peer.say_note(early, payload);
    peer.execute();
  }
  CHECK(peer.lost() == "");
  MessageHead early = head(NoteKind::kEager, 9, payload.size());
  early.key = 9;
  peer.say_note(early, payload);
  peer.execute();
  CHECK(peer.lost() == "more bytes came at once than it may send");
}

TEST_CASE("what was not offered is not sent, and a withdrawn offer may be accepted once") {
  PeerFixture peer;
  auto sent = peer.post(Direction::kSend, Rank(0), Rank(2), 5, 0, 1 << 20);
  CHECK(sent->state() == PostingState::kWaiting);  // offered, as number 1
  CHECK(peer.drop(sent));
  peer.say_note(head(NoteKind::kAccept, 1));
  peer.execute();
  CHECK(peer.lost() == "");
  peer.say_note(head(NoteKind::kAccept, 1));
  peer.execute();
  CHECK(peer.lost() == "it accepts what it was not offered");
}

TEST_CASE("messages from or for others, payloads that nobody expects, and garbage end the talk") {
  const auto lost = [](const auto& speak) {
    PeerFixture peer;
    const auto mine = receive(peer);
    speak(peer);
    peer.execute();
    return peer.lost();
  };
  CHECK(lost([](PeerFixture& peer) {
          MessageHead other = head(NoteKind::kOffer);
          other.source = Rank(1);
          peer.say_note(other);
        }) == "a message came that is not for this process");
  CHECK(lost([](PeerFixture& peer) { peer.say_chunk(1, 7); }) ==
        "a payload came that nobody expects");
  CHECK(lost([](PeerFixture& peer) {  // more than was offered
          peer.say_note(head(NoteKind::kOffer));
          peer.execute();
          peer.say_chunk(kSize + 1, 7);
        }) == "a payload came that nobody expects");
  CHECK(lost([](PeerFixture& peer) { peer.say(hostile_bytes(16, 0xff)); }) ==
        "what came is no note");
  CHECK(lost([](PeerFixture& peer) {
          peer.say(ByteWriter().number(uint32_t{3}).number(uint32_t{1}).number(uint64_t{0}).take());
          peer.say(hostile_bytes(3));
        }) == "what came is no message");
  CHECK(lost([](PeerFixture& peer) { peer.say_note(head(NoteKind::kGone)); }) ==
        "");  // nothing to do
}

}  // namespace
}  // namespace piper::comm::internal
