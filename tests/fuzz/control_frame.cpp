// What processes receive from each other, and from strangers: frames of the control channel with every body, and heads of
// messages. What is accepted is the one encoding of what was read.
#include <piper/comm/control_frame.h>
#include <piper/comm/message_head.h>

#include <algorithm>

#include "fuzz.h"

namespace piper::fuzz {
namespace {

using Bytes = std::span<const std::byte>;

template <class Body>
void check_encoding(const std::optional<Body>& body, Bytes bytes) {
  if (body) FUZZ_CHECK(std::ranges::equal(comm::encode(*body), bytes));
}

void read_body(Bytes body) {
  check_encoding(comm::parse_knock(body), body);
  check_encoding(comm::parse_challenge(body), body);
  check_encoding(comm::parse_hello(body), body);
  check_encoding(comm::parse_beat(body), body);
  check_encoding(comm::parse_failure(body), body);
  check_encoding(comm::parse_share(body), body);
}

void read_message(Bytes note) {
  constexpr int64_t kNumRanks = 7;
  const auto message = comm::parse_message(note, kNumRanks);
  if (!message) return;
  const comm::MessageHead& head = message->head;
  FUZZ_CHECK(head.source.value >= 0 && head.source.value < kNumRanks);
  FUZZ_CHECK(head.target.value >= 0 && head.target.value < kNumRanks);
  std::vector<std::byte> written;
  comm::encode(head, written);
  written.insert(written.end(), message->payload.begin(), message->payload.end());
  FUZZ_CHECK(std::ranges::equal(written, note));
}

}  // namespace

void fuzz(std::span<const std::byte> bytes) {
  read_body(bytes);
  read_message(bytes);
  for (const size_t limit : {comm::kMaxStrangerFrameBytes, comm::kMaxFrameBytes}) {
    Bytes rest = bytes;
    for (;;) {
      const comm::ParsedFrame parsed = comm::parse_frame(rest, limit);
      if (parsed.status != comm::ParsedFrame::Status::kWhole) break;
      FUZZ_CHECK(parsed.num_bytes > 0 && parsed.num_bytes <= rest.size());
      const auto again = comm::make_frame(parsed.frame.kind, parsed.frame.body);
      FUZZ_CHECK(std::ranges::equal(again, rest.first(parsed.num_bytes)));
      read_body(parsed.frame.body);
      rest = rest.subspan(parsed.num_bytes);
    }
  }
}

}  // namespace piper::fuzz
