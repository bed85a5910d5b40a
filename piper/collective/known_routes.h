// What the members of a deduplicated exchange (halo_dedup.h) tell each other before it can be
// written, as messages whose sizes everyone knows without asking; and what a member knows when it
// has heard them. Experts lie on the members in equal runs: expert e on member e /
// experts_a_member.
//
//   f tells t                 for each of its tokens and of t's experts a bit: whether that expert is chosen
//     t in another unit       the rows of each piece that t will get, 4 bytes each
//     t f's counterpart there for each token and member of t's unit a bit: whether the token goes there
//
// In place of the counts of rows that other exchanges need: those follow from the bits.
#pragma once

#include <piper/collective/halo_dedup.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace piper::collective {

// The same on all members.
struct RoutesShape {
  int64_t num_tokens = 0;  // of each member
  int64_t experts_a_member = 1;
  int64_t num_pieces = 1;  // Dedup::num_pieces
};

// So many pieces that none is larger than `chunk_bytes`, but for single rows; 0 = uncut.
int64_t dedup_pieces(int64_t chunk_bytes, int64_t num_tokens, int64_t row_bytes);

// The members that a token's experts, ascending, lie on.
TokenRoutes members_of_experts(const TokenRoutes& experts, int64_t experts_a_member);

int64_t told_bytes(int64_t from, int64_t to, const Units& units, const RoutesShape& shape);
// Writes told_bytes(from, to) bytes. `experts`: by token of `from`, the experts chosen, ascending;
// `members`: theirs.
void tell(const TokenRoutes& experts, const TokenRoutes& members, int64_t from, int64_t to,
          const Units& units, const RoutesShape& shape, std::span<std::byte> message);

// How many of a member's tokens go to each member, then how many enter each unit: all that the
// bytes of dispatch and combine depend on. `members`: by token, as members_of_experts.
std::vector<int64_t> distinct_tokens(const TokenRoutes& members, const Units& units);

// The rows that `member` sends each other one in a dispatch, where distinct(f) is f's
// distinct_tokens. In a combine it sends what it receives in the dispatch.
std::vector<int64_t> dispatched_rows(
    int64_t member, const Units& units,
    const std::function<const std::vector<int64_t>&(int64_t from)>& distinct);

// One member's knowledge. Reading is thread-safe.
class KnownRoutes {
 public:
  KnownRoutes(int64_t member, const Units& units, const RoutesShape& shape,
              const TokenRoutes& experts);
  // What `from` told; from every member once, itself included, ascending. Throws CommError for a
  // message that is none of these.
  void hear(int64_t from, std::span<const std::byte> message);

  // --- after the last was heard ---
  // For halo_dedup_dispatch and halo_dedup_combine; refers to this object.
  DedupKnown known() const;
  // Rows that a dispatch brings here: one for each token of a source with experts here.
  int64_t num_rows() const { return num_rows_; }
  // Copies for each local expert, by source: [members * experts_a_member].
  const std::vector<int64_t>& counts() const { return counts_; }
  // The row of each copy; copies by source, local expert, token.
  const std::vector<int32_t>& row_of_copy() const { return row_of_copy_; }
  const TokenRoutes& own() const { return own_; }
  int64_t experts_a_member() const { return shape_.experts_a_member; }

 private:
  int64_t member_;
  Units units_;
  RoutesShape shape_;
  TokenRoutes own_;
  std::vector<TokenRoutes> into_unit_;  // by source; empty where this member is not its counterpart
  std::vector<std::vector<int64_t>> rows_;  // by source and piece
  int64_t num_rows_ = 0;
  std::vector<int64_t> counts_;
  std::vector<int32_t> row_of_copy_;
};

}  // namespace piper::collective
