// HALO with deduplication: what its two directions share. Not rows for members are counted here but
// tokens, each bound for several members: a token crosses to a remote unit once, whatever the
// number of its targets there, and is spread inside; on the way back the unit's results for it are
// added first, and one row crosses.
//
//   token t of a0, for b0, b2 and c1:     a0 --t--> b0 --t--> b2        dispatch
//                                         a0 --t--> c0 --t--> c1
//   its results y:                        b2 --y--> b0: y(b0) + y(b2) --> a0: + y(c1)     combine
//
// A flat exchange sends a row for each of the token's k experts; here one crosses for each of
// its distinct units: k / E[distinct units] fewer bytes. The backward pass needs nothing else: the
// gradient of a dispatch is a combine, that of a combine a dispatch.
//
// Dispatch: the input is the member's tokens, one row each. The output holds for source 0, then 1,
// ... the tokens bound for this member, ascending: a row each, however many of the member's experts
// want it (sharing it out among them is a local permutation). Combine: the input is laid out like
// that output, a row holding the sum over this member's experts, already multiplied by their gate
// weights; the output has one row a token. A token without targets is not sent, and its row of a
// combine's output not written. A shared expert lies on every member and needs no exchange.
//
// Order of addition, the same in every run: inside a unit by ascending member; the own unit's sum
// first, then the other units' by ascending number.
#pragma once

#include <piper/collective/halo.h>
#include <piper/collective/steps.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace piper::collective {

// Where the tokens of one member go, by token: distinct members, ascending.
struct TokenRoutes {
  std::vector<int32_t> first{0};  // where a token's targets begin; one more at the end
  std::vector<int32_t> targets;

  int64_t num_tokens() const { return static_cast<int64_t>(first.size()) - 1; }
  std::span<const int32_t> of(int64_t token) const {
    return std::span(targets).subspan(first[token], first[token + 1] - first[token]);
  }
  void add(std::span<const int32_t> token_targets);
};

// The tokens with targets in `unit`, and the routes of these, without their targets elsewhere.
std::vector<int32_t> tokens_into(const TokenRoutes& routes, int64_t unit, const Units& units);
TokenRoutes routes_into(const TokenRoutes& routes, int64_t unit, const Units& units);

struct Dedup {
  int64_t row_count = 1;   // units of a row, >= 1
  int64_t num_pieces = 1;  // into which the tokens from a member to a unit are cut, >= 1: phase III
                           // hands on one while the next one crosses
  size_t level = 0;
};

// What a member must know before it can write its steps. What comes from others they tell it first:
//   routes_told   to the counterpart in every other unit
//   counts_told   to every other member
struct DedupKnown {
  TokenRoutes own;
  // For every source whose counterpart this member is (halo_sources): its routes into this unit.
  std::function<TokenRoutes(int64_t from)> into_unit;
  // Rows of each piece that `from` sends to this member; for members of the same unit one number.
  std::function<std::vector<int64_t>(int64_t from)> rows;
};

// routes_into of `to`'s unit where `to` is the counterpart there; else nothing.
TokenRoutes routes_told(const TokenRoutes& own, int64_t from, int64_t to, const Units& units);
// Always as many numbers as pieces, or one inside the unit: sizes are known without asking.
std::vector<int64_t> counts_told(const TokenRoutes& own, int64_t from, int64_t to,
                                 const Units& units, int64_t num_pieces);

// Piece p of num of num_rows rows is [begin, end). The sizes differ by one at most.
struct RowRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
RowRange piece_rows(int64_t num_rows, int64_t p, int64_t num);

// The rows of `routes` in a range that go to `target`, counted from the range's begin.
std::vector<int32_t> rows_for(const TokenRoutes& routes, RowRange range, int32_t target);

// Between counterpart and member: piece p of the source that stands at place `source` of the
// counterpart's halo_sources. Part 0 is what the two have for each other.
inline uint32_t handed_on_part(size_t source, int64_t p, int64_t num_pieces) {
  return static_cast<uint32_t>(1 + static_cast<int64_t>(source) * num_pieces + p);
}

// Where the rows of each source begin in a dispatch's output (a combine's input), in rows; the
// total at the end. `rows` as in DedupKnown, the member's own included.
std::vector<int64_t> row_begins(int64_t member, int64_t num_members, const DedupKnown& known);

}  // namespace piper::collective
