// The permutation of a mixture layer. The counts are needed on the host (they bind the graph's byte
// counts), so the CPU's order is found there, and that of a device where ranks share the sequences
// that a capacity is of: a counting sort, which is stable, so rows of one expert stay in token
// order. What exceeds an expert's capacity is chosen before it, sequence by sequence.
#include <piper/base/error.h>
#include <piper/nn/host_read.h>
#include <piper/nn/tensor_ops.h>
#include <piper/strategy/token_chunk.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

namespace piper::nn {
namespace {

// The choices of a micro-batch as plain memory. Copy i is choice i % k of token i / k.
template <class T>
struct Choices {
  const T* scores;        // [tokens, num_experts]; or `are_of_choices`, [tokens, k]
  const int32_t* expert;  // [tokens, k]
  int64_t tokens, k, num_experts;
  SequenceSpan span;
  bool normalised;
  const ExpertPlaces& places;
  bool are_of_choices = false;

  int64_t num_copies() const { return tokens * k; }
  // Where a copy is counted in [B * E].
  size_t place(int64_t copy) const {
    return static_cast<size_t>((span.first_token + copy / k) / span.sequence * num_experts +
                               expert[copy]);
  }
  bool is_padding(int64_t copy) const {
    return (span.first_token + copy / k) % span.sequence >= span.sequence - span.padding;
  }
  int64_t num_places() const { return places.empty() ? num_experts : places.num_places; }
  // In dispatch order. `sent`: by expert, copies that have gone before this one.
  size_t row_group(int64_t copy, std::vector<int64_t>& sent) const {
    const auto e = static_cast<size_t>(expert[copy]);
    if (places.empty()) return e;
    const int32_t first = places.first[e], num = places.first[e + 1] - first;
    const int64_t in_turn = num > 1 ? sent[e]++ % num : 0;
    return static_cast<size_t>(places.place[static_cast<size_t>(first + in_turn)]);
  }
  T score(int64_t copy) const {
    return are_of_choices ? scores[copy] : scores[copy / k * num_experts + expert[copy]];
  }
  // What the scores of a token are divided by.
  T divisor(int64_t token) const {
    if (!normalised) return T(1);
    T sum = 0;
    for (int64_t i = token * k; i < (token + 1) * k; ++i) sum += score(i);
    return sum;
  }
};

// By copy; empty = none is dropped.
using Dropped = std::vector<char>;

template <class T>
void drop_by_position(const Choices<T>& c, size_t places, int64_t capacity, Dropped& dropped) {
  std::vector<int64_t> taken(places);
  for (int64_t i = 0; i < c.num_copies(); ++i)
    if (!c.is_padding(i)) dropped[static_cast<size_t>(i)] = taken[c.place(i)]++ >= capacity;
}

template <class T>
struct WeighedCopy {
  T weight;
  int64_t copy;
};

// Keeps `capacity` of one place's copies, which are in the order of tokens: those above the cut,
// then the first of those equal to it. The cut is the weight that is the last to find room; what
// lies within the tie of it counts as equal.
//
// Weights that are equal but for rounding are common: tokens with the same text before them (the
// first ones of a sequence that begins with a repetition) have the same scores. Ranked by exact
// weights, rounding would choose among them, and it differs from processor to processor and from
// mesh to mesh. The band is laid around the cut and not on a fixed grid, since equal weights may
// lie on both sides of a grid's line, however coarse it is.
template <class T>
void drop_smallest(const std::vector<WeighedCopy<T>>& copies, int64_t capacity, T tie,
                   Dropped& dropped) {
  std::vector<T> weights;
  for (const WeighedCopy<T>& copy : copies) weights.push_back(copy.weight);
  const auto last_kept = weights.begin() + capacity - 1;
  std::nth_element(weights.begin(), last_kept, weights.end(), std::greater<>());
  const T cut = *last_kept;
  const auto is_above = [&](const WeighedCopy<T>& c) { return c.weight > cut * (1 + tie); };
  const auto is_below = [&](const WeighedCopy<T>& c) { return c.weight * (1 + tie) < cut; };
  int64_t room = capacity - std::ranges::count_if(copies, is_above);
  for (const WeighedCopy<T>& copy : copies)
    if (is_below(copy) || (!is_above(copy) && room-- <= 0))
      dropped[static_cast<size_t>(copy.copy)] = 1;
}

// A weight that is no number counts as 0, the smallest.
template <class T>
void drop_by_probability(const Choices<T>& c, const std::vector<int64_t>& counts, int64_t capacity,
                         double tie, Dropped& dropped) {
  std::map<size_t, std::vector<WeighedCopy<T>>> crowded;
  for (int64_t t = 0; t < c.tokens; ++t) {
    if (c.is_padding(t * c.k)) continue;
    const T divisor = c.divisor(t);
    for (int64_t i = t * c.k; i < (t + 1) * c.k; ++i) {
      const size_t place = c.place(i);
      if (counts[place] <= capacity) continue;
      const T weight = c.score(i) / divisor;
      crowded[place].push_back({weight >= 0 ? weight : T(0), i});
    }
  }
  for (const auto& [place, copies] : crowded)
    drop_smallest(copies, capacity, static_cast<T>(tie), dropped);
}

template <class T>
Dropped choose_dropped(const Choices<T>& c, const std::vector<int64_t>& counts,
                       const strategy::Capacity& capacity, double tie) {
  if (!capacity.is_limited()) return {};
  const int64_t rows = strategy::expert_capacity(capacity.factor, c.span.sequence - c.span.padding,
                                                 c.k, c.num_experts);
  const bool is_crowded = std::ranges::any_of(counts, [&](int64_t count) { return count > rows; });
  if (!is_crowded && c.span.padding == 0) return {};
  Dropped dropped(static_cast<size_t>(c.num_copies()));
  for (int64_t i = 0; i < c.num_copies(); ++i)
    dropped[static_cast<size_t>(i)] = c.is_padding(i) ? 1 : 0;
  switch (capacity.drop) {
    case strategy::Drop::kProbability:
      drop_by_probability(c, counts, rows, tie, dropped);
      break;
    case strategy::Drop::kPosition:
      drop_by_position(c, counts.size(), rows, dropped);
      break;
  }
  return dropped;
}

template <class T>
void fill(const Choices<T>& c, double scaling, const strategy::Capacity& capacity, double tie,
          std::span<const char> known, DispatchOrder& order) {
  order.counts.assign(static_cast<size_t>(c.num_places()), 0);
  order.sequence_counts.assign(static_cast<size_t>(c.span.num_sequences * c.num_experts), 0);
  for (int64_t i = 0; i < c.num_copies(); ++i)
    if (!c.is_padding(i)) ++order.sequence_counts[c.place(i)];
  const Dropped dropped = known.empty() ? choose_dropped(c, order.sequence_counts, capacity, tie)
                                        : Dropped(known.begin(), known.end());
  const auto is_dropped = [&](int64_t copy) {
    return !dropped.empty() && dropped[static_cast<size_t>(copy)] != 0;
  };
  std::vector<int64_t> sent(static_cast<size_t>(c.num_experts), 0);
  for (int64_t i = 0; i < c.num_copies(); ++i)
    if (!is_dropped(i)) ++order.counts[c.row_group(i, sent)];
  order.kept = order.counts;
  if (capacity.pads)
    std::ranges::fill(order.counts, c.span.num_sequences *
                                        strategy::expert_capacity(capacity.factor,
                                                                  c.span.sequence - c.span.padding,
                                                                  c.k, c.num_experts));
  std::ranges::fill(sent, 0);
  std::vector<int64_t> next(order.counts.size(), 0);
  std::exclusive_scan(order.counts.begin(), order.counts.end(), next.begin(), int64_t{0});
  const int64_t num_rows = next.back() + order.counts.back();
  order.token = at::zeros({num_rows}, at::kInt);
  order.position = at::empty({c.tokens, c.k}, at::kInt);
  order.weights = at::zeros({num_rows}, at::CppTypeToScalarType<T>::value);
  auto* token = order.token.data_ptr<int32_t>();
  auto* position = order.position.data_ptr<int32_t>();
  T* weight = order.weights.data_ptr<T>();
  for (int64_t t = 0; t < c.tokens; ++t) {
    const T divisor = c.divisor(t);
    for (int64_t i = t * c.k; i < (t + 1) * c.k; ++i) {
      position[i] = -1;
      if (is_dropped(i)) continue;
      const int64_t row = next[c.row_group(i, sent)]++;
      token[row] = static_cast<int32_t>(t);
      position[i] = static_cast<int32_t>(row);
      weight[row] = static_cast<T>(scaling) * (c.score(i) / divisor);
    }
  }
}

// f(choices), by the type of the scores. Both tensors are on the host.
template <class F>
auto with_choices(const at::Tensor& scores, const at::Tensor& expert_TK, int64_t num_experts,
                  const SequenceSpan& span, bool normalised, const ExpertPlaces& places, F f) {
  const auto as = [&]<class T>(T) {
    return f(Choices<T>{.scores = scores.const_data_ptr<T>(),
                        .expert = expert_TK.const_data_ptr<int32_t>(),
                        .tokens = expert_TK.size(0),
                        .k = expert_TK.size(1),
                        .num_experts = num_experts,
                        .span = span,
                        .normalised = normalised,
                        .places = places});
  };
  return scores.scalar_type() == at::kFloat ? as(float{}) : as(double{});
}

}  // namespace

namespace {

// What of an order lies on the host.
struct OnHost {
  explicit OnHost(const DispatchOrder& order)
      : token(read_on_host(order.token)), position(read_on_host(order.position)) {}
  at::Tensor token, position;
};

// Some rows of an order, ascending, as one of their own: of `count` tokens from `first` on.
DispatchOrder part_of(const DispatchOrder& order, const OnHost& on_host,
                      const std::vector<int32_t>& rows, std::vector<int64_t> counts, int64_t first,
                      int64_t count) {
  const auto* token_of = on_host.token.const_data_ptr<int32_t>();
  const auto* position_of = on_host.position.const_data_ptr<int32_t>();
  const int64_t k = on_host.position.size(1);
  std::vector<int32_t> of_all(static_cast<size_t>(on_host.token.size(0)), -1);
  DispatchOrder part;
  part.counts = std::move(counts);
  part.token = at::empty({std::ssize(rows)}, at::kInt);
  for (size_t i = 0; i < rows.size(); ++i) {
    of_all[static_cast<size_t>(rows[i])] = static_cast<int32_t>(i);
    part.token.data_ptr<int32_t>()[i] = token_of[rows[i]] - static_cast<int32_t>(first);
  }
  part.position = at::empty({count, k}, at::kInt);
  for (int64_t i = 0; i < count * k; ++i) {
    const int32_t at = position_of[first * k + i];
    part.position.data_ptr<int32_t>()[i] = at < 0 ? -1 : of_all[static_cast<size_t>(at)];
  }
  const at::Device device = order.weights.device();
  part.weights = order.weights.index_select(
      0, put_on_device(at::tensor(at::ArrayRef<int32_t>(rows), at::kInt), device));
  part.token = put_on_device(part.token, device);
  part.position = put_on_device(part.position, device);
  return part;
}

}  // namespace

std::vector<DispatchOrder> split_order(DispatchOrder order, int64_t num_chunks) {
  std::vector<DispatchOrder> chunks;
  if (num_chunks == 1) {
    chunks.push_back(std::move(order));
    return chunks;
  }
  const OnHost on_host(order);
  const auto* token_of = on_host.token.const_data_ptr<int32_t>();
  for (int64_t c = 0; c < num_chunks; ++c) {
    const strategy::TokenChunk own = strategy::token_chunk(on_host.position.size(0), num_chunks, c);
    // Rows of an expert are in the order of tokens, in the chunk as among all.
    std::vector<int32_t> rows;
    std::vector<int64_t> counts;
    int64_t row = 0;
    for (const int64_t count : order.counts) {
      const size_t before = rows.size();
      for (const int64_t end = row + count; row < end; ++row)
        if (token_of[row] >= own.first && token_of[row] < own.first + own.count)
          rows.push_back(static_cast<int32_t>(row));
      counts.push_back(static_cast<int64_t>(rows.size() - before));
    }
    chunks.push_back(part_of(order, on_host, rows, std::move(counts), own.first, own.count));
  }
  return chunks;
}

std::vector<DispatchOrder> split_order_by_peers(const DispatchOrder& order, int64_t num_chunks,
                                                int64_t peers, int64_t index) {
  const OnHost on_host(order);
  const auto places = std::ssize(order.counts);
  PIPER_CHECK(places % peers == 0, "as many places on every rank");
  std::vector<DispatchOrder> chunks;
  for (int64_t c = 0; c < num_chunks; ++c) {
    const strategy::TokenChunk distances = strategy::token_chunk(peers, num_chunks, c);
    std::vector<int32_t> rows;
    std::vector<int64_t> counts;
    int32_t row = 0;
    for (int64_t place = 0; place < places; ++place) {
      const auto count = static_cast<int32_t>(order.counts[static_cast<size_t>(place)]);
      const bool is_own = strategy::is_in_group(peers, distances, index, place / (places / peers));
      for (int32_t i = 0; is_own && i < count; ++i) rows.push_back(row + i);
      counts.push_back(is_own ? count : 0);
      row += count;
    }
    chunks.push_back(part_of(order, on_host, rows, std::move(counts), 0, on_host.position.size(0)));
  }
  return chunks;
}

JoinedCopies join_chunks(const std::vector<at::Tensor>& position,
                         const std::vector<at::Tensor>& weights,
                         const std::vector<at::Tensor>& g_weights) {
  JoinedCopies all{position.front().clone(), at::cat(weights), at::cat(g_weights)};
  int64_t before = 0;
  for (size_t c = 0; c < position.size(); before += weights[c++].size(0))
    if (c > 0)  // a copy has a row in one chunk, and -1 in the others
      all.position =
          all.position.maximum((position[c] + before).masked_fill_(position[c].lt(0), -1));
  return all;
}

DispatchOrder divide_order(const DispatchOrder& order, int64_t ranks, int64_t index) {
  const at::Tensor token = read_on_host(order.token), position = read_on_host(order.position);
  const auto experts = std::ssize(order.counts);
  const auto part = [&](int64_t rank, int64_t expert) {
    return strategy::token_chunk(order.counts[static_cast<size_t>(expert)], ranks,
                                 (rank + expert) % ranks);
  };
  DispatchOrder own;
  // The row of the whole order that each of all rows by rank is, and the other way.
  std::vector<int32_t> rows, place_of(static_cast<size_t>(token.size(0)));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto before = std::ssize(rows);
    if (rank == index) own.first_own_row = before;
    int64_t first = 0;
    for (int64_t e = 0; e < experts; first += order.counts[static_cast<size_t>(e++)]) {
      const strategy::TokenChunk of = part(rank, e);
      if (rank == index) own.counts.push_back(of.count);
      for (int64_t row = first + of.first; row < first + of.first + of.count; ++row) {
        place_of[static_cast<size_t>(row)] = static_cast<int32_t>(rows.size());
        rows.push_back(static_cast<int32_t>(row));
      }
    }
    own.divided_rows.push_back(std::ssize(rows) - before);
  }
  own.token = at::empty({own.divided_rows[static_cast<size_t>(index)]}, at::kInt);
  for (int64_t i = 0; i < own.token.size(0); ++i)
    own.token.data_ptr<int32_t>()[i] =
        token.const_data_ptr<int32_t>()[rows[static_cast<size_t>(own.first_own_row + i)]];
  own.position = at::empty(position.sizes(), at::kInt);
  for (int64_t i = 0; i < position.numel(); ++i) {
    const int32_t row = position.const_data_ptr<int32_t>()[i];
    own.position.data_ptr<int32_t>()[i] = row < 0 ? -1 : place_of[static_cast<size_t>(row)];
  }
  const at::Device device = order.weights.device();
  own.weights = order.weights.index_select(
      0, put_on_device(at::tensor(at::ArrayRef<int32_t>(rows), at::kInt), device));
  own.token = put_on_device(own.token, device);
  own.position = put_on_device(own.position, device);
  return own;
}

void limit_groups_(at::Tensor scores, int64_t num_groups, int64_t top_groups, bool two_best) {
  const at::Tensor grouped = scores.view({scores.size(0), num_groups, -1});
  const at::Tensor rank = two_best && grouped.size(2) > 1
                              ? std::get<0>(at::topk(grouped, 2, -1)).sum(-1)
                              : std::get<0>(grouped.max(-1));
  at::Tensor best = at::empty({rank.size(0), top_groups}, rank.options().dtype(at::kInt));
  choose_experts_out(best, rank);
  best = best.to(at::kLong);
  const at::Tensor outside = at::ones_like(rank, at::kBool).scatter_(1, best, false);
  grouped.masked_fill_(outside.unsqueeze(-1), -std::numeric_limits<double>::infinity());
}

DispatchOrder order_rows(const at::Tensor& probabilities, const at::Tensor& expert,
                         const SequenceSpan& sequences, bool normalised, double scaling,
                         const strategy::Capacity& capacity, double tie, const ExpertPlaces& places,
                         std::span<const char> dropped) {
  PIPER_CHECK(places.empty() || std::ssize(places.first) == probabilities.size(1) + 1,
              "places of every expert");
  SequenceSpan span = sequences;
  const int64_t tokens = expert.size(0);
  PIPER_CHECK(span.sequence > 0, "a sequence without tokens");
  if (span.num_sequences == 0) {
    PIPER_CHECK(span.first_token == 0 && tokens % span.sequence == 0,
                "tokens are not whole sequences");
    span.num_sequences = tokens / span.sequence;
  }
  const bool are_whole = span.first_token % span.sequence == 0 && tokens % span.sequence == 0;
  PIPER_CHECK(
      span.first_token >= 0 && span.first_token + tokens <= span.num_sequences * span.sequence,
      "tokens beyond their sequences");
  PIPER_CHECK(are_whole || !capacity.is_limited() || !dropped.empty(),
              "a capacity is that of a whole sequence");
  PIPER_CHECK(!capacity.pads || (places.empty() && dropped.empty() && are_whole),
              "a capacity is padded for whole sequences and experts in their own places");
  if (!has_kernels(probabilities) && dropped.empty())
    return any_device::order_rows(probabilities, expert, span, normalised, scaling, places,
                                  {capacity, tie});
  DispatchOrder order;
  with_choices(read_on_host(probabilities), read_on_host(expert), probabilities.size(1), span,
               normalised, places,
               [&](const auto& c) { fill(c, scaling, capacity, tie, dropped, order); });
  order.token = put_on_device(order.token, expert.device());
  order.position = put_on_device(order.position, expert.device());
  order.weights = put_on_device(order.weights, expert.device());
  return order;
}

void read_counts(DispatchOrder& order) {
  if (!order.kept_P.defined() || !order.counts.empty()) return;
  const at::Tensor read =
      read_on_host(at::cat({order.kept_P, order.sequence_counts_BE.reshape({-1})}));
  const auto* first = read.const_data_ptr<int64_t>();
  order.kept.assign(first, first + order.kept_P.size(0));
  order.counts = order.kept;
  order.sequence_counts.assign(first + order.kept_P.size(0), first + read.size(0));
  const int64_t kept = std::accumulate(order.counts.begin(), order.counts.end(), int64_t{0});
  order.token = order.token.narrow(0, 0, kept);
  order.weights = order.weights.narrow(0, 0, kept);
}

std::vector<char> beyond_capacity(const at::Tensor& choices_BSC, int64_t num_experts,
                                  int64_t padding, const strategy::Capacity& capacity, double tie) {
  const int64_t sequences = choices_BSC.size(0), sequence = choices_BSC.size(1),
                k = choices_BSC.size(2) / 2;
  const at::Tensor all = read_on_host(choices_BSC).view({-1, 2 * k});
  const at::Tensor expert = all.narrow(1, 0, k).to(at::kInt).contiguous(),
                   weights = all.narrow(1, k, k).contiguous();
  return with_choices(weights, expert, num_experts, {sequence, 0, sequences, padding}, false, {},
                      [&](auto c) {
                        c.are_of_choices = true;
                        std::vector<int64_t> counts(static_cast<size_t>(sequences * num_experts));
                        for (int64_t i = 0; i < c.num_copies(); ++i)
                          if (!c.is_padding(i)) ++counts[c.place(i)];
                        Dropped dropped = choose_dropped(c, counts, capacity, tie);
                        if (dropped.empty()) dropped.resize(static_cast<size_t>(c.num_copies()));
                        return dropped;
                      });
}

}  // namespace piper::nn
