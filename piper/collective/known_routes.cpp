#include <fmt/format.h>
#include <piper/base/error.h>
#include <piper/collective/known_routes.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

namespace piper::collective {
namespace {

// bit(token, i) of a table with so many columns lies at token * columns + i.
int64_t table_bytes(int64_t num_tokens, int64_t columns) { return (num_tokens * columns + 7) / 8; }

void set_bit(std::span<std::byte> table, int64_t index) {
  table[static_cast<size_t>(index / 8)] |= std::byte{1} << (index % 8);
}

// Calls f(index) for every bit that is set, ascending.
template <class F>
void each_bit(std::span<const std::byte> table, F f) {
  for (size_t i = 0; i < table.size(); ++i)
    for (auto left = std::to_integer<unsigned>(table[i]); left != 0; left &= left - 1)
      f(static_cast<int64_t>(i) * 8 + std::countr_zero(left));
}

// What a message consists of.
struct Parts {
  int64_t experts = 0, pieces = 0, unit = 0;  // bytes
  int64_t total() const { return experts + pieces + unit; }
};

Parts parts_of(int64_t from, int64_t to, const Units& units, const RoutesShape& shape) {
  Parts parts{.experts = table_bytes(shape.num_tokens, shape.experts_a_member)};
  if (units.together(from, to)) return parts;
  parts.pieces = shape.num_pieces * static_cast<int64_t>(sizeof(int32_t));
  if (units.counterpart(from, units.unit(to)) == to)
    parts.unit = table_bytes(shape.num_tokens, units.size(units.unit(to)));
  return parts;
}

}  // namespace

int64_t dedup_pieces(int64_t chunk_bytes, int64_t num_tokens, int64_t row_bytes) {
  if (chunk_bytes <= 0) return 1;
  const int64_t rows = std::max(chunk_bytes / row_bytes, int64_t{1});
  return std::max((num_tokens + rows - 1) / rows, int64_t{1});
}

TokenRoutes members_of_experts(const TokenRoutes& experts, int64_t experts_a_member) {
  TokenRoutes members;
  std::vector<int32_t> of_token;
  for (int64_t token = 0; token < experts.num_tokens(); ++token) {
    of_token.clear();
    for (const int32_t expert : experts.of(token)) {
      const auto member = static_cast<int32_t>(expert / experts_a_member);
      if (of_token.empty() || of_token.back() != member) of_token.push_back(member);
    }
    members.add(of_token);
  }
  return members;
}

int64_t told_bytes(int64_t from, int64_t to, const Units& units, const RoutesShape& shape) {
  return parts_of(from, to, units, shape).total();
}

namespace {

bool goes_into(const Units& units, std::span<const int32_t> members, int64_t unit) {
  return std::ranges::any_of(members, [&](int32_t m) { return units.unit(m) == unit; });
}

// As counts_told of halo_dedup.h, without the routes on the way.
std::vector<int32_t> rows_of_pieces(const TokenRoutes& members, int64_t to, const Units& units,
                                    int64_t num_pieces) {
  const int64_t unit = units.unit(to);
  int64_t num_tokens = 0;
  for (int64_t token = 0; token < members.num_tokens(); ++token)
    num_tokens += goes_into(units, members.of(token), unit);
  std::vector<int32_t> rows(static_cast<size_t>(num_pieces));
  int64_t piece = 0, next = 0;
  for (int64_t token = 0; token < members.num_tokens(); ++token) {
    const std::span<const int32_t> of_token = members.of(token);
    if (!goes_into(units, of_token, unit)) continue;
    while (next >= piece_rows(num_tokens, piece, num_pieces).end) ++piece;
    ++next;
    rows[static_cast<size_t>(piece)] +=
        std::ranges::binary_search(of_token, static_cast<int32_t>(to));
  }
  return rows;
}

}  // namespace

void tell(const TokenRoutes& experts, const TokenRoutes& members, int64_t from, int64_t to,
          const Units& units, const RoutesShape& shape, std::span<std::byte> message) {
  const Parts parts = parts_of(from, to, units, shape);
  PIPER_CHECK(std::ssize(message) == parts.total() && experts.num_tokens() == shape.num_tokens,
              "a message of routes of another shape");
  std::ranges::fill(message, std::byte{0});
  const int64_t each = shape.experts_a_member;
  for (int64_t token = 0; token < shape.num_tokens; ++token)
    for (const int32_t expert : experts.of(token))
      if (expert / each == to) set_bit(message, token * each + expert % each);
  if (parts.pieces == 0) return;
  const std::vector<int32_t> rows = rows_of_pieces(members, to, units, shape.num_pieces);
  std::memcpy(message.data() + parts.experts, rows.data(), static_cast<size_t>(parts.pieces));
  if (parts.unit == 0) return;
  const std::span<std::byte> table =
      message.subspan(static_cast<size_t>(parts.experts + parts.pieces));
  const int64_t unit = units.unit(to);
  for (int64_t token = 0; token < shape.num_tokens; ++token)
    for (const int32_t member : members.of(token))
      if (units.unit(member) == unit)
        set_bit(table, token * units.size(unit) + units.place(member));
}

std::vector<int64_t> distinct_tokens(const TokenRoutes& members, const Units& units) {
  std::vector<int64_t> distinct(static_cast<size_t>(units.num_members() + units.num_units()));
  std::vector<int64_t> last(static_cast<size_t>(units.num_units()), -1);
  for (int64_t token = 0; token < members.num_tokens(); ++token)
    for (const int32_t member : members.of(token)) {
      const auto unit = static_cast<size_t>(units.unit(member));
      ++distinct[static_cast<size_t>(member)];
      distinct[static_cast<size_t>(units.num_members()) + unit] += last[unit] != token;
      last[unit] = token;
    }
  return distinct;
}

std::vector<int64_t> dispatched_rows(
    int64_t member, const Units& units,
    const std::function<const std::vector<int64_t>&(int64_t from)>& distinct) {
  std::vector<int64_t> rows(static_cast<size_t>(units.num_members()));
  for (const int32_t to : unit_targets(member, units)) {
    const auto t = static_cast<size_t>(to);
    rows[t] = distinct(member)[t];
    for (const int32_t from : halo_sources(member, units)) rows[t] += distinct(from)[t];
  }
  for (const int32_t unit : units_from(member, units))
    rows[static_cast<size_t>(units.counterpart(member, unit))] =
        distinct(member)[static_cast<size_t>(units.num_members() + unit)];
  return rows;
}

KnownRoutes::KnownRoutes(int64_t member, const Units& units, const RoutesShape& shape,
                         const TokenRoutes& experts)
    : member_(member),
      units_(units),
      shape_(shape),
      own_(members_of_experts(experts, shape.experts_a_member)),
      into_unit_(static_cast<size_t>(units.num_members())),
      rows_(static_cast<size_t>(units.num_members())) {}

void KnownRoutes::hear(int64_t from, std::span<const std::byte> message) {
  const Parts parts = parts_of(from, member_, units_, shape_);
  const int64_t each = shape_.experts_a_member;
  PIPER_CHECK(std::ssize(message) == parts.total() && std::ssize(counts_) == from * each,
              "routes are heard in order, each once");
  const auto broken = [&] {
    throw CommError(fmt::format("member {} told routes that contradict each other", from));
  };

  // The tokens that arrive from there, ascending, and those of each expert here.
  std::vector<std::vector<int32_t>> copies(static_cast<size_t>(each));
  int64_t last = -1, num_rows = 0;
  each_bit(message.first(static_cast<size_t>(parts.experts)), [&](int64_t index) {
    const int64_t token = index / each;
    if (token >= shape_.num_tokens) broken();
    num_rows += token != last;
    last = token;
    copies[static_cast<size_t>(index % each)].push_back(
        static_cast<int32_t>(num_rows_ + num_rows - 1));
  });
  for (const std::vector<int32_t>& of_expert : copies) {
    counts_.push_back(std::ssize(of_expert));
    row_of_copy_.insert(row_of_copy_.end(), of_expert.begin(), of_expert.end());
  }
  num_rows_ += num_rows;

  std::vector<int64_t>& rows = rows_[static_cast<size_t>(from)];
  rows = {num_rows};
  if (parts.pieces > 0) {
    std::vector<int32_t> narrow(static_cast<size_t>(shape_.num_pieces));
    std::memcpy(narrow.data(), message.data() + parts.experts, static_cast<size_t>(parts.pieces));
    rows.assign(narrow.begin(), narrow.end());
    if (std::ranges::any_of(rows, [](int64_t count) { return count < 0; }) ||
        std::accumulate(rows.begin(), rows.end(), int64_t{0}) != num_rows)
      broken();
  }
  if (parts.unit == 0) return;
  const int64_t unit = units_.unit(member_), size = units_.size(unit);
  std::vector<int32_t> of_token;
  TokenRoutes& routes = into_unit_[static_cast<size_t>(from)];
  last = -1;
  each_bit(message.subspan(static_cast<size_t>(parts.experts + parts.pieces)), [&](int64_t index) {
    if (index / size != last && !of_token.empty()) {
      routes.add(of_token);
      of_token.clear();
    }
    last = index / size;
    of_token.push_back(units_.members(unit)[static_cast<size_t>(index % size)]);
  });
  if (!of_token.empty()) routes.add(of_token);
}

DedupKnown KnownRoutes::known() const {
  PIPER_CHECK(std::ssize(counts_) == units_.num_members() * shape_.experts_a_member,
              "routes of some members were not heard");
  return {.own = own_,
          .into_unit = [this](int64_t from) { return into_unit_[static_cast<size_t>(from)]; },
          .rows = [this](int64_t from) { return rows_[static_cast<size_t>(from)]; }};
}

}  // namespace piper::collective
