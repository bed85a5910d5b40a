#include <doctest/doctest.h>
#include <piper/comm/control_frame.h>
#include <piper/comm/message_head.h>

#include <cstring>
#include <random>

namespace piper::comm {
namespace {

using Bytes = std::vector<std::byte>;
using Status = ParsedFrame::Status;

Bytes share_frame() {
  return make_frame(FrameKind::kShare, encode(ShareBody{7, "sizes", {"a", "", "ccc"}}));
}

TEST_CASE("frames come back as they were written, one after the other") {
  Bytes bytes = share_frame();
  const size_t first = bytes.size();
  const Bytes beat =
      make_frame(FrameKind::kBeat,
                 encode(std::vector<RankActivity>{{Rank(3), 12, "F3 L2 dispatch"}, {Rank(4)}}));
  bytes.insert(bytes.end(), beat.begin(), beat.end());

  const ParsedFrame one = parse_frame(bytes);
  REQUIRE(one.status == Status::kWhole);
  CHECK(one.num_bytes == first);
  const auto share = parse_share(one.frame.body);
  REQUIRE(share.has_value());
  CHECK(share->number == 7);
  CHECK(share->what == "sizes");
  CHECK(share->texts == std::vector<std::string>{"a", "", "ccc"});

  const ParsedFrame two = parse_frame(std::span(bytes).subspan(first));
  REQUIRE(two.status == Status::kWhole);
  const auto activities = parse_beat(two.frame.body);
  REQUIRE(activities.has_value());
  CHECK(activities->size() == 2);
  CHECK(activities->front().operation == "F3 L2 dispatch");
  CHECK(activities->back().step == -1);
}

TEST_CASE("a frame cut anywhere is incomplete, and its body cut anywhere is refused") {
  const Bytes bytes = share_frame();
  for (size_t size = 0; size < bytes.size(); ++size)
    CHECK(parse_frame(std::span(bytes).first(size)).status == Status::kIncomplete);
  const Bytes failure = encode(FailureBody{Rank(2), "out of memory", Fault::kInput});
  const Bytes hello = encode(HelloBody{{1, 4, 8, "host", 77}, {}});
  for (size_t size = 0; size < failure.size(); ++size)
    CHECK_FALSE(parse_failure(std::span(failure).first(size)));
  for (size_t size = 0; size < hello.size(); ++size)
    CHECK_FALSE(parse_hello(std::span(hello).first(size)));
  CHECK(parse_failure(failure)->fault == Fault::kInput);
  CHECK(parse_hello(hello)->identity.host == "host");
}

TEST_CASE("empty, unknown and too large frames are bad as soon as that is known") {
  const auto status = [](uint32_t size, int kind, size_t limit) {
    Bytes bytes(4);
    std::memcpy(bytes.data(), &size, 4);
    if (kind >= 0) bytes.push_back(static_cast<std::byte>(kind));
    return parse_frame(bytes, limit).status;
  };
  CHECK(status(0, -1, 100) == Status::kBad);
  CHECK(status(101, -1, 100) == Status::kBad);
  CHECK(status(100, -1, 100) == Status::kIncomplete);
  CHECK(status(0xFFFFFFFF, -1, kMaxFrameBytes) == Status::kBad);
  CHECK(status(5, 0, 100) == Status::kBad);
  CHECK(status(5, 99, 100) == Status::kBad);
}

// Sanitizers watch.
TEST_CASE("arbitrary bytes are parsed without harm") {
  constexpr unsigned kSeed = 5;
  std::mt19937 random(kSeed);
  CAPTURE(kSeed);
  const Bytes valid = share_frame();
  int num_whole = 0;
  for (int round = 0; round < 100000; ++round) {
    Bytes bytes = valid;
    if (round % 2 == 0) {
      bytes.resize(random() % 80);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    } else {
      for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    const ParsedFrame parsed = parse_frame(bytes, kMaxStrangerFrameBytes);
    if (parsed.status == Status::kWhole) {
      ++num_whole;
      CHECK(parsed.num_bytes <= bytes.size());
      bytes.assign(parsed.frame.body.begin(), parsed.frame.body.end());
    }
    (void)parse_challenge(bytes);
    (void)parse_hello(bytes);
    (void)parse_beat(bytes);
    (void)parse_failure(bytes);
    (void)parse_share(bytes);
    if (const auto message = parse_message(bytes, 4)) CHECK(message->head.source.value < 4);
  }
  CHECK(num_whole > 1000);
}

TEST_CASE("heads of messages come back, and only with the bytes that they announce") {
  Bytes note;
  encode({NoteKind::kEager, Rank(1), Rank(2), 3, 4, 5, 6, "F0 L1 combine"}, note);
  const Bytes head = note;
  note.resize(note.size() + 5);
  const auto message = parse_message(note, 3);
  REQUIRE(message.has_value());
  CHECK(message->head.source == Rank(1));
  CHECK(message->head.target == Rank(2));
  CHECK(message->head.part == 3);
  CHECK(message->head.key == 4);
  CHECK(message->head.id == 6);
  CHECK(message->head.what == "F0 L1 combine");
  CHECK(message->payload.size() == 5);
  CHECK_FALSE(parse_message(note, 2).has_value());
  CHECK_FALSE(parse_message(head, 3).has_value());
}

TEST_CASE("a note whose words are longer than any that is written is refused") {
  constexpr size_t kWordsAt = 1 + 2 * sizeof(int32_t) + sizeof(uint32_t) + 3 * sizeof(uint64_t);
  for (const size_t more : {size_t{0}, size_t{1}}) {
    Bytes note;
    encode({.kind = NoteKind::kRefuse, .source = Rank(0), .target = Rank(1)}, note);
    REQUIRE(note.size() == kWordsAt + sizeof(uint32_t));
    const auto size = static_cast<uint32_t>(kMaxWhatBytes + more);
    std::memcpy(&note[kWordsAt], &size, sizeof size);
    note.resize(note.size() + size, std::byte{'x'});
    CHECK(parse_message(note, 2).has_value() == (more == 0));
  }
}

}  // namespace
}  // namespace piper::comm
