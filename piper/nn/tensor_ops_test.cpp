#include <doctest/doctest.h>
#include <piper/nn/tensor_ops.h>
#include <piper/strategy/token_chunk.h>
#include <testing/nn/numbers.h>

#include <cmath>
#include <span>
#include <utility>
#include <vector>

namespace piper::nn {
namespace {

// Both precisions, with what the kernels may differ by from the composition.
template <class F>
void in_both_precisions(F f) {
  f(at::kDouble, 1e-12);
  f(at::kFloat, 1e-5);
}

TEST_CASE("RMSNorm and its backward equal the composition, by row and by head, strided") {
  in_both_precisions([](at::ScalarType dtype, double tolerance) {
    const at::Tensor wide = wave({5, 40}, 0, dtype);
    for (const at::Tensor& x :
         {wide.narrow(1, 7, 21), wide.narrow(1, 3, 21).unflatten(1, {3, 7})}) {
      const int64_t width = x.size(-1);
      const at::Tensor w = wave({width}, 1, dtype), y = at::empty(x.sizes(), x.options()),
                       yp = at::empty_like(y);
      rms_norm_out(y, x, w, 1e-5);
      any_device::rms_norm_out(yp, x, w, 1e-5);
      CHECK(difference(y, yp) < tolerance);
      for (const double beta : {0.0, 1.0}) {
        const at::Tensor g = wave(x.sizes(), 2, dtype), gp = g.clone(),
                         residual = wave(x.sizes(), 4, dtype);
        const at::Tensor gw = wave({width}, 3, dtype), gwp = gw.clone();
        rms_norm_backward_(g, x, w, 1e-5, gw, beta, beta == 0 ? residual : at::Tensor());
        any_device::rms_norm_backward_(gp, x, w, 1e-5, gwp, beta,
                                       beta == 0 ? residual : at::Tensor());
        CHECK(difference(g, gp) < tolerance);
        CHECK(difference(gw, gwp) < tolerance);
      }
    }
  });
}

TEST_CASE(
    "the rotary embedding equals the composition, turns back, and leaves the rest of a head "
    "alone") {
  in_both_precisions([](at::ScalarType dtype, double tolerance) {
    for (const bool interleaved : {false, true}) {
      const at::Tensor x = wave({6, 3, 10}, 0, dtype), before = x.clone(), plain = x.clone();
      const RopeTable table = make_rope_table(
          5, 10, {.partial_factor = 0.65, .interleaved = interleaved}, dtype, at::kCPU);  // 6 of 10
      CHECK(table.cosine.size(1) == 3);
      rotate_(x, table, 3, false);
      any_device::rotate_(plain, table, 3, false);
      CHECK(difference(x, plain) < tolerance);
      CHECK(at::equal(x.narrow(2, 6, 4), before.narrow(2, 6, 4)));
      CHECK(at::equal(x.select(0, 3), before.select(0, 3)));  // position 0 of the second sequence
      CHECK(difference(x.select(0, 1), before.select(0, 1)) > 0.1);
      rotate_(x, table, 3, true);
      CHECK(difference(x, before) < tolerance);
    }
  });
}

TEST_CASE("SwiGLU and its backward equal the composition, at the ends of the exponent too") {
  in_both_precisions([](at::ScalarType dtype, double tolerance) {
    const at::Tensor h = wave({3, 22}, 0, dtype), hp = h.clone(),
                     act = at::empty({3, 11}, h.options());
    h.narrow(1, 0, 2).mul_(60);
    hp.narrow(1, 0, 2).mul_(60);
    const at::Tensor actp = at::empty_like(act), g = wave({3, 11}, 1, dtype), gp = g.clone();
    swiglu_out(act, h);
    any_device::swiglu_out(actp, h);
    CHECK(difference(act, actp) < tolerance * 100);
    swiglu_backward_(h, g);
    any_device::swiglu_backward_(hp, gp);
    CHECK(difference(h, hp) < tolerance * 100);
    CHECK(difference(g, actp) < tolerance * 100);
  });
}

TEST_CASE("rows are gathered, summed, merged and scattered as the compositions do") {
  in_both_precisions([](at::ScalarType dtype, double tolerance) {
    const at::Tensor position = at::tensor({3, 0, 5, 1, 2, 4}, at::kInt).view({3, 2});
    const at::Tensor token = at::tensor({0, 1, 2, 0, 2, 1}, at::kInt);
    const at::Tensor x = wave({3, 9}, 0, dtype), rows = wave({6, 9}, 1, dtype),
                     weights = wave({6}, 2, dtype);
    const at::Tensor out = at::empty({6, 9}, x.options()), outp = at::empty_like(out);
    gather_rows_out(out, x, token);
    any_device::gather_rows_out(outp, x, token);
    CHECK(at::equal(out, outp));
    const at::Tensor sum = at::empty_like(x), sump = at::empty_like(x);
    sum_rows_out(sum, rows, position);
    any_device::sum_rows_out(sump, rows, position);
    CHECK(difference(sum, sump) < tolerance);
    merge_out(sum, rows, weights, position, x);
    any_device::merge_out(sump, rows, weights, position, x);
    CHECK(difference(sum, sump) < tolerance);
    const at::Tensor gw = at::empty({6}, x.options()), gwp = at::empty_like(gw);
    merge_backward_out(out, gw, x, rows, weights, position);
    any_device::merge_backward_out(outp, gwp, x, rows, weights, position, 0);
    CHECK(difference(out, outp) < tolerance);
    CHECK(difference(gw, gwp) < tolerance);
    const at::Tensor table = wave({4, 9}, 3, dtype), tablep = table.clone(),
                     index = at::tensor({3, 0, 3, 3, 1, 0}, at::kLong);
    add_rows_(table, index, rows);
    any_device::add_rows_(tablep, index, rows);
    CHECK(difference(table, tablep) < tolerance);
  });
}

// Token 0 lost its first copy, token 1 both, token 2 none: 3 rows.
TEST_CASE("dropped copies add nothing to a sum and a merge, and have no gradient") {
  in_both_precisions([](at::ScalarType dtype, double tolerance) {
    const at::Tensor position = at::tensor({-1, 2, -1, -1, 0, 1}, at::kInt).view({3, 2});
    const at::Tensor x = wave({3, 9}, 0, dtype), rows = wave({3, 9}, 1, dtype),
                     weights = wave({3}, 2, dtype);
    const at::Tensor sum = at::full({3, 9}, 7, x.options()), sump = at::full_like(sum, 8);
    sum_rows_out(sum, rows, position);
    any_device::sum_rows_out(sump, rows, position);
    CHECK(difference(sum, sump) < tolerance);
    CHECK(at::equal(sum.select(0, 0), rows.select(0, 2)));
    CHECK(at::equal(sum.select(0, 1), at::zeros({9}, x.options())));
    merge_out(sum, rows, weights, position, x);
    any_device::merge_out(sump, rows, weights, position, x);
    CHECK(difference(sum, sump) < tolerance);
    CHECK(at::equal(sum.select(0, 1), x.select(0, 1)));
    const at::Tensor g = at::empty_like(rows), gp = at::empty_like(rows),
                     gw = at::empty_like(weights), gwp = at::empty_like(weights);
    merge_backward_out(g, gw, x, rows, weights, position);
    any_device::merge_backward_out(gp, gwp, x, rows, weights, position, 0);
    CHECK(difference(g, gp) < tolerance);
    CHECK(difference(gw, gwp) < tolerance);
    const at::Tensor token = at::tensor({2, 2, 0}, at::kLong);
    CHECK(difference(gw, (x.index_select(0, token) * rows).sum(1)) < tolerance * 10);
  });
}

// Both ranks' results are those of the whole backward, on its own rows and on all.
TEST_CASE("a share of the rows has the gradients of its own rows, and the weights' of all") {
  in_both_precisions([](at::ScalarType dtype, double tolerance) {
    const at::Tensor position = at::tensor({-1, 2, 3, -1, 0, 1}, at::kInt).view({3, 2});
    const at::Tensor x = wave({3, 9}, 0, dtype), rows = wave({4, 9}, 1, dtype),
                     weights = wave({4}, 2, dtype);
    const at::Tensor all = at::empty_like(rows), all_weights = at::empty_like(weights);
    merge_backward_out(all, all_weights, x, rows, weights, position);
    for (const auto& [first, count] : {std::pair{0, 1}, {1, 3}, {4, 0}}) {
      const at::Tensor g = at::empty({count, 9}, x.options()), gp = at::empty_like(g),
                       gw = at::empty_like(weights), gwp = at::empty_like(weights);
      merge_backward_out(g, gw, x, rows, weights, position, first);
      any_device::merge_backward_out(gp, gwp, x, rows, weights, position, first);
      CHECK(at::equal(g, all.narrow(0, first, count)));
      CHECK(at::equal(gw, all_weights));
      if (count > 0) CHECK(difference(g, gp) < tolerance);
      CHECK(difference(gw, gwp) < tolerance);
    }
  });
}

TEST_CASE("groups of peers hold every copy once, and join to the order that they were cut from") {
  const at::Tensor p = at::softmax(wave({13, 6}, 3, at::kDouble) * 4, -1);
  const at::Tensor expert = at::empty({13, 2}, at::kInt);
  choose_experts_out(expert, p);
  for (const double capacity : {0.0, 1.0})
    for (const int64_t peers : {2, 3, 6})
      for (const int64_t chunks : {int64_t{2}, peers})
        for (int64_t self = 0; self < peers; ++self) {
          CAPTURE(capacity);
          CAPTURE(peers);
          CAPTURE(chunks);
          CAPTURE(self);
          const DispatchOrder order = order_rows(p, expert, {13}, true, 1, {.factor = capacity});
          std::vector<int64_t> counts(6);
          std::vector<at::Tensor> position, weights;
          const std::vector<DispatchOrder> groups =
              split_order_by_peers(order, chunks, peers, self);
          for (size_t c = 0; c < groups.size(); ++c) {
            const DispatchOrder& group = groups[c];
            for (int64_t e = 0; e < 6; ++e) {
              const strategy::TokenChunk distances =
                  strategy::token_chunk(peers, chunks, static_cast<int64_t>(c));
              const bool is_in = strategy::is_in_group(peers, distances, self, e / (6 / peers));
              CHECK(group.counts[static_cast<size_t>(e)] ==
                    (is_in ? order.counts[static_cast<size_t>(e)] : 0));
              counts[static_cast<size_t>(e)] += group.counts[static_cast<size_t>(e)];
            }
            for (int64_t row = 0; row < group.token.size(0); ++row)
              CHECK(group.position[group.token[row].item<int64_t>()].eq(row).any().item<bool>());
            position.push_back(group.position);
            weights.push_back(group.weights);
          }
          CHECK(counts == order.counts);
          const JoinedCopies all = join_chunks(position, weights, weights);
          CHECK(at::equal(all.position.lt(0), order.position.lt(0)));
          for (int64_t i = 0; i < order.position.numel(); ++i) {
            const auto from = order.position.view({-1})[i].item<int64_t>();
            if (from < 0) continue;
            CHECK(all.weights[all.position.view({-1})[i].item<int64_t>()].item<double>() ==
                  order.weights[from].item<double>());
          }
        }
}

TEST_CASE("every expert's rows are divided among the ranks, and each copy is found again") {
  const at::Tensor p = at::softmax(wave({13, 5}, 3, at::kDouble) * 4, -1);
  const at::Tensor expert = at::empty({13, 2}, at::kInt);
  choose_experts_out(expert, p);
  for (const double capacity : {0.0, 1.0})
    for (const int64_t ranks : {1, 2, 3, 7}) {
      CAPTURE(ranks);
      CAPTURE(capacity);
      const DispatchOrder order = order_rows(p, expert, {13}, true, 1, {.factor = capacity});
      std::vector<int64_t> counts(5), token_of(static_cast<size_t>(order.token.size(0)));
      int64_t first = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const DispatchOrder own = divide_order(order, ranks, rank);
        REQUIRE(std::ssize(own.divided_rows) == ranks);
        CHECK(own.first_own_row == first);
        CHECK(own.token.size(0) == own.divided_rows[static_cast<size_t>(rank)]);
        int64_t row = 0;
        for (size_t e = 0; e < counts.size(); ++e) {
          counts[e] += own.counts[e];
          CHECK(std::abs(own.counts[e] * ranks - order.counts[e]) < ranks);
          for (const int64_t end = row + own.counts[e]; row < end; ++row) {
            const auto token = own.token[row].item<int64_t>();
            // The token's copy for this expert is at this place among those of all ranks.
            bool found = false;
            for (int64_t j = 0; j < 2; ++j)
              found |= expert[token][j].item<int64_t>() == static_cast<int64_t>(e) &&
                       own.position[token][j].item<int64_t>() == first + row;
            CHECK(found);
            token_of[static_cast<size_t>(first + row)] = token;
          }
        }
        CHECK(row == own.token.size(0));
        first += row;
        // All ranks have the same places and weights.
        const DispatchOrder other = divide_order(order, ranks, 0);
        CHECK(at::equal(own.position, other.position));
        CHECK(at::equal(own.weights, other.weights));
        CHECK(at::equal(own.position.lt(0), order.position.lt(0)));
        for (int64_t i = 0; i < order.position.numel(); ++i) {
          const auto from = order.position.view({-1})[i].item<int64_t>();
          if (from < 0) continue;
          CHECK(own.weights[own.position.view({-1})[i].item<int64_t>()].item<double>() ==
                order.weights[from].item<double>());
        }
      }
      CHECK(counts == order.counts);
      CHECK(first == order.token.size(0));
    }
}

TEST_CASE("the router equals the composition and breaks ties by the lower index") {
  in_both_precisions([](at::ScalarType dtype, double tolerance) {
    const at::Tensor logits = wave({6, 7}, 0, dtype);
    logits.select(0, 1).fill_(0.5);
    logits.select(0, 2).narrow(0, 3, 2).fill_(9);
    const at::Tensor p = logits.clone(), pp = logits.clone();
    const at::Tensor log_sum = at::empty({6}, p.options()), log_sump = at::empty_like(log_sum);
    softmax_(p, log_sum);
    any_device::softmax_(pp, log_sump);
    CHECK(difference(p, pp) < tolerance);
    CHECK(difference(log_sum, log_sump) < tolerance);
    const at::Tensor expert = at::empty({6, 3}, at::kInt), expertp = at::empty_like(expert);
    choose_experts_out(expert, p);
    any_device::choose_experts_out(expertp, p);
    CHECK(at::equal(expert, expertp));
    CHECK(at::equal(expert.select(0, 1), at::tensor({0, 1, 2}, at::kInt)));
    for (const bool normalised : {false, true})
      for (const bool sigmoid : {false, true}) {
        const DispatchOrder order =
            order_rows(p, expert, {3}, normalised, 1, {.factor = normalised ? 0.5 : 0});
        RouterGradients in{.expert = expert,
                           .position = order.position,
                           .weights = order.weights,
                           .g_weights = wave({order.weights.size(0)}, 1, dtype),
                           .auxiliary = normalised ? wave({2, 7}, 2, dtype) : at::Tensor(),
                           .g_log_sum = sigmoid ? wave({6}, 3, dtype) : at::Tensor(),
                           .sequence = 3,
                           .normalised = normalised,
                           .sigmoid = sigmoid};
        const at::Tensor& from = sigmoid ? logits : p;
        const at::Tensor g = from.clone(), gp = from.clone();
        router_backward_(g, in);
        any_device::router_backward_(gp, in);
        CHECK(difference(g, gp) < tolerance);
      }
  });
}

TEST_CASE("dispatch order is by expert, then token, and knows its way back") {
  const at::Tensor p = at::tensor({.2, .5, .3, .6, .1, .3}, at::kDouble).view({2, 3});
  const at::Tensor expert = at::tensor({1, 2, 0, 2}, at::kInt).view({2, 2});
  const DispatchOrder order = order_rows(p, expert, {1}, true);
  CHECK(order.counts == std::vector<int64_t>{1, 1, 2});
  CHECK(order.sequence_counts == std::vector<int64_t>{0, 1, 1, 1, 0, 1});
  CHECK(at::equal(order.token, at::tensor({1, 0, 0, 1}, at::kInt)));
  CHECK(at::equal(order.position, at::tensor({1, 2, 0, 3}, at::kInt).view({2, 2})));
  CHECK(at::allclose(order.weights, at::tensor({.6 / .9, .5 / .8, .3 / .8, .3 / .9}, at::kDouble)));
}

// Expert 1 has copies at places 1 and 4, expert 2 is at place 3; place 2 is of an expert's copy
// that this rank sends nothing to.
TEST_CASE("rows of an expert with several copies go to their places in turn, on any device") {
  const at::Tensor p = at::rand({7, 3}, at::kDouble) + 0.1;
  const at::Tensor expert =
      at::tensor({1, 0, 1, 2, 1, 0, 2, 1, 1, 2, 0, 1, 1, 0}, at::kInt).view({7, 2});
  const ExpertPlaces places{.place = {0, 1, 4, 3}, .first = {0, 1, 3, 4}, .num_places = 5};
  const DispatchOrder order = order_rows(p, expert, {7}, true, 1, {}, 0, places);
  CHECK(order.counts == std::vector<int64_t>{4, 4, 0, 3, 3});
  CHECK(order.sequence_counts == std::vector<int64_t>{4, 7, 3});
  CHECK(at::equal(order.token, at::tensor({0, 2, 5, 6, 0, 2, 4, 6, 1, 3, 4, 1, 3, 5}, at::kInt)));
  DispatchOrder composed = any_device::order_rows(p, expert, {7, 0, 1}, true, 1, places);
  read_counts(composed);
  CHECK(composed.counts == order.counts);
  CHECK(at::equal(composed.token, order.token));
  CHECK(at::equal(composed.position, order.position));
  CHECK(at::equal(composed.weights, order.weights));
}

// Two sequences of 4 tokens, one choice each among 3 experts; experts take 2 rows of a sequence at
// factor 1.
TEST_CASE("beyond the capacity the smaller weight or the later token goes, sequence by sequence") {
  at::Tensor p = at::full({8, 3}, .1, at::kDouble);
  const at::Tensor expert = at::tensor({0, 0, 0, 1, 2, 2, 2, 2}, at::kInt).view({8, 1});
  const double score[] = {.3, .5, .4, .9, .6, .7, .6, .6};
  for (int64_t t = 0; t < 8; ++t) p[t][expert[t][0].item<int64_t>()] = score[t];
  const auto order = [&](double factor, strategy::Drop drop) {
    return order_rows(p, expert, {4}, false, 2, {.factor = factor, .drop = drop});
  };
  const DispatchOrder best = order(1, strategy::Drop::kProbability);
  CHECK(best.counts == std::vector<int64_t>{2, 1, 2});
  CHECK(best.sequence_counts == std::vector<int64_t>{3, 1, 0, 0, 0, 4});  // choices
  CHECK(
      at::equal(best.token, at::tensor({1, 2, 3, 4, 5}, at::kInt)));  // of the equal ones, token 4
  CHECK(at::equal(best.position.flatten(), at::tensor({-1, 0, 1, 2, 3, 4, -1, -1}, at::kInt)));
  CHECK(at::allclose(best.weights, at::tensor({1., .8, 1.8, 1.2, 1.4}, at::kDouble)));
  const DispatchOrder first = order(1, strategy::Drop::kPosition);
  CHECK(at::equal(first.token, at::tensor({0, 1, 3, 4, 5}, at::kInt)));
  CHECK(first.counts == best.counts);
  const DispatchOrder all = order(3, strategy::Drop::kPosition), dropless = order(0, {});
  CHECK(at::equal(all.position, dropless.position));
  CHECK(all.counts == std::vector<int64_t>{3, 1, 4});
  CHECK(order(.01, strategy::Drop::kProbability).counts == std::vector<int64_t>{1, 1, 1});
}

// 6 tokens with one expert of two, which takes 3 rows. Rounding moves each weight by up to 2^-13 of
// it, either way.
TEST_CASE(
    "of weights that are equal but for rounding the first tokens' stay, whichever way they were "
    "rounded") {
  const at::Tensor expert = at::zeros({6, 1}, at::kInt);
  const auto kept = [&](const at::Tensor& weights) {
    const at::Tensor p = at::stack({weights, 1 - weights}, 1);
    return order_rows(p, expert, {6}, false, 1, {.factor = 1}).token;
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const double weight : {0.3, 0.5, 0.001})  // on either side of any grid's lines, and on one
      for (int way = 0; way < 64; ++way) {
        at::Tensor weights = at::full({6}, weight, dtype);
        for (int64_t t = 0; t < 6; ++t)
          weights[t].mul_(1 + ((way >> t) & 1 ? 1 : -1) * std::ldexp(1, -14));
        CAPTURE(way);
        CHECK(at::equal(kept(weights), at::tensor({0, 1, 2}, at::kInt)));
        weights[5].mul_(1.01);  // well above, and well below
        weights[0].mul_(0.99);
        CHECK(at::equal(kept(weights), at::tensor({1, 2, 5}, at::kInt)));
      }
}

// Weights on a coarse grid, so that many are equal; some by a little more or less than the tie.
at::Tensor nearly_equal_scores(int64_t tokens, int64_t experts, at::ScalarType dtype) {
  const at::Tensor grid = (at::rand({tokens, experts}, at::kDouble) * 3).ceil() / 4;
  const at::Tensor nudge =
      (at::rand({tokens, experts}, at::kDouble) * 5 - 2).floor() * std::ldexp(1, -13);
  return (grid * (1 + nudge)).to(dtype);
}

TEST_CASE("compositions drop what the host's order drops, ties, padding and copies of experts") {
  constexpr int64_t kSequences = 3, kSequence = 16, kExperts = 3, kChoices = 2;
  const ExpertPlaces with_copies{.place = {0, 1, 4, 3}, .first = {0, 1, 3, 4}, .num_places = 5};
  at::manual_seed(11);
  int64_t num_dropped = 0;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
    for (const double factor : {0.01, 0.5, 1., 1.4, 8.})
      for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition})
        for (const int64_t padding : {0, 3})
          for (const ExpertPlaces& places : {ExpertPlaces{}, with_copies}) {
            CAPTURE(factor);
            CAPTURE(padding);
            at::Tensor p = nearly_equal_scores(kSequences * kSequence, kExperts, dtype);
            p[3].fill_(std::nan(""));
            const at::Tensor expert = at::empty({p.size(0), kChoices}, at::kInt);
            choose_experts_out(expert, p);
            const SequenceSpan span{
                .sequence = kSequence, .num_sequences = kSequences, .padding = padding};
            const strategy::Capacity capacity{.factor = factor, .drop = drop};
            const bool normalised = padding == 0;
            const auto same = [](const DispatchOrder& composed, const DispatchOrder& expected) {
              CHECK(composed.counts == expected.counts);
              CHECK(at::equal(composed.token, expected.token));
              CHECK(at::equal(composed.position, expected.position));
              CHECK(at::equal(composed.weights.nan_to_num(-1), expected.weights.nan_to_num(-1)));
            };
            const DispatchOrder expected = order_rows(p, expert, span, normalised, 2, capacity,
                                                      capacity_tie(at::kFloat), places);
            DispatchOrder composed = any_device::order_rows(p, expert, span, normalised, 2, places,
                                                            {.capacity = capacity});
            const int64_t each = kSequences * strategy::expert_capacity(factor, kSequence - padding,
                                                                        kChoices, kExperts);
            CHECK(composed.token.size(0) == (places.empty()
                                                 ? std::min(p.size(0) * kChoices, kExperts * each)
                                                 : p.size(0) * kChoices));
            read_counts(composed);
            same(composed, expected);
            CHECK(composed.sequence_counts == expected.sequence_counts);
            CHECK(composed.kept == expected.kept);
            if (places.empty()) {
              strategy::Capacity padded = capacity;
              padded.pads = true;
              const DispatchOrder filled = order_rows(p, expert, span, normalised, 2, padded);
              composed = any_device::order_rows(p, expert, span, normalised, 2, places,
                                                {.capacity = padded});
              same(composed, filled);
              CHECK(filled.kept == expected.counts);
              CHECK(filled.counts == std::vector<int64_t>(kExperts, each));
              // Rows of copies are the same; those between them weigh nothing.
              CHECK(at::equal(filled.position.lt(0), expected.position.lt(0)));
              const at::Tensor rows = filled.position.masked_select(filled.position.ge(0));
              CHECK(filled.weights.nan_to_num(1).ne(0).sum().item<int64_t>() == rows.numel());
              CHECK(at::equal(std::get<0>(filled.token.index_select(0, rows).sort()),
                              std::get<0>(expected.token.sort())));
            }
            num_dropped += p.size(0) * kChoices - expected.token.size(0);
          }
  CHECK(num_dropped > 1000);
}

TEST_CASE("choices side by side drop what whole sequences drop, padding and all") {
  const int64_t sequences = 3, sequence = 9, k = 2, experts = 4;
  at::manual_seed(7);
  const at::Tensor p = at::softmax(at::randn({sequences * sequence, experts}, at::kDouble), -1);
  const at::Tensor expert = at::empty({p.size(0), k}, at::kInt);
  choose_experts_out(expert, p);
  const at::Tensor weights = p.gather(1, expert.to(at::kLong));
  const at::Tensor choices =
      at::cat({expert.to(at::kDouble), weights}, 1).view({sequences, sequence, 2 * k});
  for (const int64_t padding : {0, 2})
    for (const strategy::Drop drop : {strategy::Drop::kProbability, strategy::Drop::kPosition}) {
      CAPTURE(padding);
      const strategy::Capacity capacity{.factor = 0.8, .drop = drop};
      const SequenceSpan span{.sequence = sequence, .num_sequences = sequences, .padding = padding};
      const DispatchOrder whole = order_rows(p, expert, span, false, 1, capacity);
      const std::vector<char> dropped =
          beyond_capacity(choices, experts, padding, capacity, capacity_tie(at::kFloat));
      const at::Tensor flat = whole.position.reshape({-1});
      REQUIRE(flat.numel() == std::ssize(dropped));
      int64_t num_dropped = 0, num_counted = 0;
      for (int64_t i = 0; i < flat.numel(); ++i) {
        CHECK((flat[i].item<int>() < 0) == (dropped[static_cast<size_t>(i)] != 0));
        num_dropped += dropped[static_cast<size_t>(i)] != 0 ? 1 : 0;
      }
      CHECK(num_dropped > k * sequences * padding);
      for (const int64_t count : whole.sequence_counts) num_counted += count;
      CHECK(num_counted == k * sequences * (sequence - padding));
      // These parts begin and end inside sequences.
      int64_t num_rows = 0;
      for (const auto& [first, tokens] : {std::pair<int64_t, int64_t>{0, 13}, {13, 14}}) {
        const DispatchOrder part = order_rows(
            p.narrow(0, first, tokens).contiguous(), expert.narrow(0, first, tokens).contiguous(),
            {.sequence = sequence,
             .first_token = first,
             .num_sequences = sequences,
             .padding = padding},
            false, 1, capacity, capacity_tie(at::kFloat), {},
            std::span(dropped).subspan(static_cast<size_t>(first * k),
                                       static_cast<size_t>(tokens * k)));
        num_rows += part.token.size(0);
      }
      CHECK(num_rows == whole.token.size(0));
    }
}

TEST_CASE("of groups that are equal the lower one is among the best") {
  for (const bool two_best : {false, true}) {
    const at::Tensor scores =
        at::tensor({.2, .3, .3, .2, .1, .3, .3, .1}, at::kDouble).view({1, 8});
    limit_groups_(scores, 4, 1, two_best);
    CHECK(at::equal(scores.isfinite(), at::arange(8).lt(2).view({1, 8})));
  }
}

TEST_CASE("weights that are no numbers are dropped first") {
  at::Tensor p = at::full({4, 2}, .5, at::kDouble);
  p.select(0, 1).fill_(std::nan(""));
  const at::Tensor expert = at::zeros({4, 1}, at::kInt);
  const DispatchOrder order = order_rows(p, expert, {4}, false, 1, {.factor = 1.5});
  CHECK(at::equal(order.token, at::tensor({0, 2, 3}, at::kInt)));
}

TEST_CASE("cross-entropy and its gradient equal the composition; ignored rows give nothing") {
  in_both_precisions([](at::ScalarType dtype, double tolerance) {
    const at::Tensor logits = wave({4, 33}, 0, dtype) * 5, plain = logits.clone(),
                     kept = logits.clone();
    const at::Tensor targets = at::tensor({5, -100, 0, 32}, at::kLong);
    const double loss = cross_entropy_(logits, targets, true, 0.25).read();
    CHECK(loss == doctest::Approx(any_device::cross_entropy_(plain, targets, true, 0.25).read())
                      .epsilon(tolerance));
    CHECK(difference(logits, plain) < tolerance);
    CHECK(logits.select(0, 1).count_nonzero().item<int64_t>() == 0);
    CHECK(cross_entropy_(kept, targets, false, 0).read() ==
          doctest::Approx(loss).epsilon(tolerance));
  });
}

// Storage rounds, arithmetic does not: beside the same operation in fp32 on the same values, one
// rounding of the result.
void check_rounded(const at::Tensor& bf16, const at::Tensor& fp32) {
  CHECK((bf16.scalar_type() == at::kBFloat16));
  const at::Tensor wide = bf16.to(at::kFloat);
  CHECK(((wide - fp32).abs() <= fp32.abs() * 0x1p-8 + 1e-6).all().item<bool>());
}

TEST_CASE("bf16 is fp32 with one rounding of what is stored") {
  const auto narrow = [](at::IntArrayRef shape, double phase) {
    return wave(shape, phase, at::kBFloat16);
  };
  const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat); };
  const at::Tensor x = narrow({6, 40}, 0), w = narrow({40}, 1);
  at::Tensor y = at::empty_like(x), yw = wide(x);
  rms_norm_out(y, x, w, 1e-5);
  rms_norm_out(yw, wide(x), wide(w), 1e-5);
  check_rounded(y, yw);

  const at::Tensor g = narrow({6, 40}, 2), gw = wide(g), residual = narrow({6, 40}, 3);
  const at::Tensor weight_gradient = wave({40}, 4, at::kFloat), same = weight_gradient.clone();
  rms_norm_backward_(g, x, w, 1e-5, weight_gradient, 1, residual);
  rms_norm_backward_(gw, wide(x), wide(w), 1e-5, same, 1, wide(residual));
  check_rounded(g, gw);
  CHECK(difference(weight_gradient, same) < 1e-5);

  const RopeTable table = make_rope_table(3, 10, {}, at::kFloat, at::kCPU);
  const at::Tensor turned = narrow({6, 4, 10}, 5), turned_wide = wide(turned);
  rotate_(turned, table, 3, false);
  rotate_(turned_wide, table, 3, false);
  check_rounded(turned, turned_wide);

  const at::Tensor h = narrow({6, 40}, 6), hw = wide(h), act = narrow({6, 20}, 7), aw = wide(act);
  swiglu_backward_(h, act);
  swiglu_backward_(hw, aw);
  check_rounded(h, hw);
  check_rounded(act, aw);

  const at::Tensor position = at::arange(12, at::kInt).view({6, 2}), rows = narrow({12, 40}, 8);
  const at::Tensor weights = wave({12}, 9, at::kFloat), g_weights = at::empty_like(weights),
                   g_weights_wide = at::empty_like(weights);
  at::Tensor g_rows = at::empty_like(rows), g_rows_wide = wide(rows);
  merge_backward_out(g_rows, g_weights, x, rows, weights, position);
  merge_backward_out(g_rows_wide, g_weights_wide, wide(x), wide(rows), weights, position);
  check_rounded(g_rows, g_rows_wide);
  CHECK(difference(g_weights, g_weights_wide) < 1e-4);

  const at::Tensor main = wave({5, 40}, 10, at::kFloat), main_too = main.clone();
  const at::Tensor index = at::tensor(at::ArrayRef<int64_t>({4, 0, 4, 1, 2, 4}));
  add_rows_(main, index, x);
  add_rows_(main_too, index, wide(x));
  CHECK(at::equal(main, main_too));

  const at::Tensor logits = narrow({6, 40}, 11), logits_wide = wide(logits);
  const at::Tensor target = at::tensor(at::ArrayRef<int64_t>({0, 7, -100, 39, 3, 3}));
  const double loss = cross_entropy_(logits, target, true, 0.5).read();
  CHECK(loss ==
        doctest::Approx(cross_entropy_(logits_wide, target, true, 0.5).read()).epsilon(1e-5));
  CHECK(difference(wide(logits), logits_wide) < 0.5 * 0x1p-7);
}

}  // namespace
}  // namespace piper::nn
