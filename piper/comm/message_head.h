// The heads of the notes that processes exchange about the messages of their ranks. Parsing is
// pure.
#pragma once

#include <piper/base/strong_id.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace piper::comm {

enum class NoteKind : uint8_t {
  kEager = 1,  // a message with its payload
  kOffer,      // a message whose payload waits at the sender
  kAccept,     // the receive is posted: send the payload
  kRefuse,     // the receive is of another size: `what` is the problem, for the sender
  kGone,       // what was accepted had been withdrawn
  kCredit,     // `size` bytes of eager messages were taken
};

struct MessageHead {
  NoteKind kind = NoteKind::kEager;
  Rank source, target;
  uint32_t part = 0;
  uint64_t key = 0;
  uint64_t size = 0;  // of the message, bytes
  uint64_t id = 0;    // the sender's number of the message
  std::string what;   // cut at kMaxWhatBytes
};

constexpr size_t kMaxWhatBytes = 1024;

struct ParsedMessage {
  MessageHead head;
  std::span<const std::byte> payload;  // the rest: of an eager message
};

// Appends to `out`.
void encode(const MessageHead& head, std::vector<std::byte>& out);

// nullopt for anything but a known kind with valid ranks below `num_ranks`, a `what` no longer than
// it may be, and, if eager, as many bytes as it says.
std::optional<ParsedMessage> parse_message(std::span<const std::byte> note, int64_t num_ranks);

}  // namespace piper::comm
