#include <piper/comm/bytes.h>
#include <piper/comm/message_head.h>

#include <algorithm>

namespace piper::comm {

void encode(const MessageHead& head, std::vector<std::byte>& out) {
  ByteWriter writer(std::move(out));
  writer.number(static_cast<uint8_t>(head.kind)).number(head.source.value);
  writer.number(head.target.value).number(head.part).number(head.key);
  writer.number(head.size).number(head.id);
  writer.text(std::string_view(head.what).substr(0, kMaxWhatBytes));
  out = writer.take();
}

std::optional<ParsedMessage> parse_message(std::span<const std::byte> note, int64_t num_ranks) {
  ByteReader in(note);
  ParsedMessage message;
  MessageHead& head = message.head;
  const auto kind = in.number<uint8_t>();
  head.source = Rank(in.number<int32_t>());
  head.target = Rank(in.number<int32_t>());
  head.part = in.number<uint32_t>();
  head.key = in.number<uint64_t>();
  head.size = in.number<uint64_t>();
  head.id = in.number<uint64_t>();
  head.what = in.text();
  message.payload = in.rest();
  const auto is_rank = [&](Rank rank) { return rank.valid() && rank.value < num_ranks; };
  if (!in.ok() || kind < static_cast<uint8_t>(NoteKind::kEager) ||
      kind > static_cast<uint8_t>(NoteKind::kCredit) || !is_rank(head.source) ||
      !is_rank(head.target) || head.what.size() > kMaxWhatBytes)
    return std::nullopt;
  head.kind = static_cast<NoteKind>(kind);
  const size_t expected = head.kind == NoteKind::kEager ? head.size : 0;
  if (message.payload.size() != expected) return std::nullopt;
  return message;
}

}  // namespace piper::comm
