#include <piper/base/error.h>
#include <piper/collective/all_to_all_flat.h>

#include <string>

namespace piper::collective {
namespace {

std::vector<Block> back_to_back(Buffer buffer, std::span<const int64_t> counts) {
  std::vector<Block> blocks;
  blocks.reserve(counts.size());
  int64_t offset = 0;
  for (const int64_t count : counts) {
    PIPER_CHECK(count >= 0, "count " + std::to_string(count));
    blocks.push_back({buffer, offset, count});
    offset += count;
  }
  return blocks;
}

int64_t total(const std::vector<Block>& blocks) {
  return blocks.empty() ? 0 : blocks.back().offset + blocks.back().count;
}

}  // namespace

MemberSteps all_to_all_flat(int64_t member, std::span<const int64_t> send_counts,
                            std::span<const int64_t> receive_counts) {
  const auto n = static_cast<int64_t>(send_counts.size());
  PIPER_CHECK(receive_counts.size() == send_counts.size() && member >= 0 && member < n);
  PIPER_CHECK(send_counts[member] == receive_counts[member], "a member's part for itself");
  const std::vector<Block> sent = back_to_back(Buffer::kInput, send_counts);
  const std::vector<Block> received = back_to_back(Buffer::kOutput, receive_counts);

  MemberSteps result{.input_count = total(sent), .output_count = total(received)};
  result.steps.reserve(2 * n - 1);
  for (int64_t distance = 1; distance < n; ++distance) {
    const int64_t peer = (member - distance + n) % n;
    if (received[peer].count > 0)
      result.steps.push_back({.kind = StepKind::kReceive,
                              .peer = static_cast<int32_t>(peer),
                              .target = received[peer]});
  }
  for (int64_t distance = 1; distance < n; ++distance) {
    const int64_t peer = (member + distance) % n;
    if (sent[peer].count > 0)
      result.steps.push_back(
          {.kind = StepKind::kSend, .peer = static_cast<int32_t>(peer), .source = sent[peer]});
  }
  result.steps.push_back(
      {.kind = StepKind::kCopy, .source = sent[member], .target = received[member]});
  return result;
}

}  // namespace piper::collective
