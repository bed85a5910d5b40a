// What processes tell each other besides the messages of their ranks: the frames of the control
// channel, and of the introduction (handshake.h) with which a connection begins.
//
//   | size of the rest: 4 bytes | kind: 1 byte | body |
//
// Parsing is pure: bytes in, frames out; nothing is believed, nothing larger than the input is
// allocated.
#pragma once

#include <piper/base/strong_id.h>
#include <piper/comm/fault.h>
#include <piper/comm/secret.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace piper::comm {

enum class FrameKind : uint8_t {
  kChallenge = 1,  // the acceptor's nonce
  kHello,          // the connecting side introduces itself
  kWelcome,        // and so does the acceptor
  kReject,         // why an introduction is refused, for one who knows the secret
  kBeat,           // a process lives, and what its ranks do
  kFailure,        // a rank has failed
  kShare,          // one process's text
  kShared,         // the texts of all
  kGoodbye,        // from a member: it leaves; from the hub: all may
  kKnock,          // the first word of whoever connects
};

struct Frame {
  FrameKind kind = FrameKind::kChallenge;
  std::span<const std::byte> body;
};

struct ParsedFrame {
  enum class Status { kIncomplete, kWhole, kBad };
  Status status = Status::kIncomplete;
  size_t num_bytes = 0;  // of a whole frame, prefix included
  Frame frame;
};

constexpr size_t kMaxFrameBytes = size_t{64} << 20;
constexpr size_t kMaxStrangerFrameBytes = 4096;  // before the introduction is over

// Every knock has this size, and begins with the same kKnockPrefixBytes bytes.
constexpr size_t kKnockBytes = 5 + 4 + 2 * sizeof(Digest);
constexpr size_t kKnockPrefixBytes = 5 + 4;

// The frame at the front of `bytes`. Bad: an unknown kind, an empty frame or one of more than
// `limit` bytes, as soon as its prefix is there.
ParsedFrame parse_frame(std::span<const std::byte> bytes, size_t limit = kMaxFrameBytes);
std::vector<std::byte> make_frame(FrameKind kind, std::span<const std::byte> body);

// Who a process is.
struct Identity {
  int64_t process = 0;
  int64_t num_processes = 0;
  int64_t num_ranks = 0;  // of all processes
  std::string host;
  int64_t pid = 0;
};

// What a rank does.
struct RankActivity {
  Rank rank;
  int64_t step = -1;  // -1: nothing noted yet
  std::string operation;
};

struct KnockBody {
  Digest nonce{}, proof{};
};
struct ChallengeBody {
  Digest nonce{};
};
struct HelloBody {  // of a welcome, too
  Identity identity;
  Digest proof{};
};
struct FailureBody {
  Rank rank;
  std::string reason;
  Fault fault = Fault::kRun;
};
struct ShareBody {
  uint64_t number = 0;  // of the call, counted by every process
  std::string what;
  std::vector<std::string> texts;  // one, or those of all processes
};

std::vector<std::byte> encode(const KnockBody& body);
std::vector<std::byte> encode(const ChallengeBody& body);
std::vector<std::byte> encode(const HelloBody& body);
std::vector<std::byte> encode(const std::vector<RankActivity>& body);
std::vector<std::byte> encode(const FailureBody& body);
std::vector<std::byte> encode(const ShareBody& body);
std::vector<std::byte> encode(const Identity& identity);

// nullopt when the body is not exactly one such thing.
std::optional<KnockBody> parse_knock(std::span<const std::byte> body);
std::optional<ChallengeBody> parse_challenge(std::span<const std::byte> body);
std::optional<HelloBody> parse_hello(std::span<const std::byte> body);
std::optional<std::vector<RankActivity>> parse_beat(std::span<const std::byte> body);
std::optional<FailureBody> parse_failure(std::span<const std::byte> body);
std::optional<ShareBody> parse_share(std::span<const std::byte> body);

}  // namespace piper::comm
