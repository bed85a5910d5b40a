#include <piper/base/error.h>
#include <piper/comm/bytes.h>
#include <piper/comm/control_frame.h>

#include <algorithm>

namespace piper::comm {
namespace {

constexpr uint32_t kMagic = 0x32505050;  // the protocol's version, and the byte order

Digest read_digest(ByteReader& in) {
  Digest digest{};
  const auto bytes = in.raw(digest.size());
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

Identity read_identity(ByteReader& in) {
  Identity identity;
  identity.process = in.number<int64_t>();
  identity.num_processes = in.number<int64_t>();
  identity.num_ranks = in.number<int64_t>();
  identity.host = in.text();
  identity.pid = in.number<int64_t>();
  return identity;
}

void write(ByteWriter& out, const Identity& identity) {
  out.number(identity.process).number(identity.num_processes).number(identity.num_ranks);
  out.text(identity.host).number(identity.pid);
}

}  // namespace

ParsedFrame parse_frame(std::span<const std::byte> bytes, size_t limit) {
  ByteReader in(bytes);
  const auto size = in.number<uint32_t>();
  if (!in.ok()) return {};
  if (size == 0 || size > limit) return {.status = ParsedFrame::Status::kBad};
  const auto kind = in.number<uint8_t>();
  if (!in.ok()) return {};
  if (kind < static_cast<uint8_t>(FrameKind::kChallenge) ||
      kind > static_cast<uint8_t>(FrameKind::kKnock))
    return {.status = ParsedFrame::Status::kBad};
  const auto body = in.raw(size - 1);
  if (!in.ok()) return {};
  return {ParsedFrame::Status::kWhole, sizeof size + size, {static_cast<FrameKind>(kind), body}};
}

std::vector<std::byte> make_frame(FrameKind kind, std::span<const std::byte> body) {
  PIPER_CHECK(body.size() < kMaxFrameBytes, std::to_string(body.size()) + " bytes in a frame");
  ByteWriter out;
  out.number(static_cast<uint32_t>(body.size() + 1)).number(static_cast<uint8_t>(kind)).raw(body);
  return out.take();
}

std::vector<std::byte> encode(const Identity& identity) {
  ByteWriter out;
  write(out, identity);
  return out.take();
}

std::vector<std::byte> encode(const KnockBody& body) {
  return ByteWriter().number(kMagic).raw(body.nonce).raw(body.proof).take();
}

std::vector<std::byte> encode(const ChallengeBody& body) {
  return ByteWriter().number(kMagic).raw(body.nonce).take();
}

std::vector<std::byte> encode(const HelloBody& body) {
  ByteWriter out;
  write(out, body.identity);
  return out.raw(body.proof).take();
}

std::vector<std::byte> encode(const std::vector<RankActivity>& body) {
  ByteWriter out;
  for (const RankActivity& activity : body)
    out.number(activity.rank.value).number(activity.step).text(activity.operation);
  return out.take();
}

std::vector<std::byte> encode(const FailureBody& body) {
  return ByteWriter()
      .number(body.rank.value)
      .number(static_cast<uint8_t>(body.fault))
      .text(body.reason)
      .take();
}

std::vector<std::byte> encode(const ShareBody& body) {
  ByteWriter out;
  out.number(body.number).text(body.what);
  for (const std::string& text : body.texts) out.text(text);
  return out.take();
}

std::optional<KnockBody> parse_knock(std::span<const std::byte> body) {
  ByteReader in(body);
  const auto magic = in.number<uint32_t>();
  KnockBody knock{.nonce = read_digest(in)};
  knock.proof = read_digest(in);
  return in.at_end() && magic == kMagic ? std::optional(knock) : std::nullopt;
}

std::optional<ChallengeBody> parse_challenge(std::span<const std::byte> body) {
  ByteReader in(body);
  const auto magic = in.number<uint32_t>();
  ChallengeBody challenge{read_digest(in)};
  return in.at_end() && magic == kMagic ? std::optional(challenge) : std::nullopt;
}

std::optional<HelloBody> parse_hello(std::span<const std::byte> body) {
  ByteReader in(body);
  HelloBody hello{.identity = read_identity(in)};
  hello.proof = read_digest(in);
  return in.at_end() ? std::optional(hello) : std::nullopt;
}

std::optional<std::vector<RankActivity>> parse_beat(std::span<const std::byte> body) {
  ByteReader in(body);
  std::vector<RankActivity> activities;
  while (in.ok() && !in.rest().empty()) {
    RankActivity activity{.rank = Rank(in.number<int32_t>()), .step = in.number<int64_t>()};
    activity.operation = in.text();
    activities.push_back(std::move(activity));
  }
  return in.ok() ? std::optional(std::move(activities)) : std::nullopt;
}

std::optional<FailureBody> parse_failure(std::span<const std::byte> body) {
  ByteReader in(body);
  FailureBody failure{.rank = Rank(in.number<int32_t>())};
  const auto fault = in.number<uint8_t>();
  failure.fault = static_cast<Fault>(fault);
  failure.reason = in.text();
  const bool is_one = in.at_end() && failure.rank.valid() && fault < kNumFaults;
  return is_one ? std::optional(std::move(failure)) : std::nullopt;
}

std::optional<ShareBody> parse_share(std::span<const std::byte> body) {
  ByteReader in(body);
  ShareBody share{.number = in.number<uint64_t>()};
  share.what = in.text();
  while (in.ok() && !in.rest().empty()) share.texts.emplace_back(in.text());
  return in.ok() ? std::optional(std::move(share)) : std::nullopt;
}

}  // namespace piper::comm
