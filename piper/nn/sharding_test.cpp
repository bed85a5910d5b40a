#include <doctest/doctest.h>
#include <testing/nn/whole_step.h>

#include <algorithm>
#include <string>
#include <utility>

namespace piper::nn {
namespace {

using namespace testing;

StageOptions options_for(const std::vector<Batch>& batches) {
  StageOptions options{
      .dtype = at::kDouble, .seed = 11, .global_sequences = 0, .global_target_tokens = 0};
  for (const Batch& batch : batches) {
    options.global_sequences += batch.tokens_BS.size(0);
    options.global_target_tokens += num_targets(batch);
    options.mtp_weight = 0.4;
    options.mtp_target_tokens.resize(2);
    for (int64_t k = 1; k <= 2; ++k)
      options.mtp_target_tokens[static_cast<size_t>(k - 1)] += num_targets(batch, k);
  }
  return options;
}

struct Alone {
  NamedTensors gradients;
  RoutingMargin margin;
};

// One rank sees all batches in turn.
Alone alone(const model::Model& model, const std::vector<Batch>& batches,
            double capacity_factor = 0) {
  strategy::Strategy s = tiny_strategy(model, 1, 1, 8);
  s.capacity.factor = capacity_factor;
  const auto stage = make_stage(model, s, Rank(0), options_for(batches));
  stage->zero_gradients();
  RoutingMargin margin;
  for (const Batch& batch : batches) {
    const RoutingMargin of_batch = run_step(model, {stage.get()}, {batch}, s.capacity);
    margin = {std::min(margin.selection, of_batch.selection),
              std::min(margin.capacity, of_batch.capacity)};
  }
  return {gradients(*stage), margin};
}

// What make(seed) gives for the first seed on which, with any of these capacities, no choice of
// experts and no drop hangs on rounding.
template <class Make>
std::vector<Batch> clear_batches(const model::Model& model, std::vector<double> capacities,
                                 Make make) {
  for (uint64_t seed = 20; seed < 120; ++seed) {
    std::vector<Batch> batches = make(seed);
    if (std::ranges::all_of(capacities, [&](double capacity) {
          return alone(model, batches, capacity).margin.least() >= kRoutingMargin;
        }))
      return batches;
  }
  FAIL("no batches keep the margin");
  return {};
}

// Batches of one and two sequences in turn, one a rank.
auto random_batches(const model::Model& model, int64_t ep) {
  return [&model, ep](uint64_t seed) {
    std::vector<Batch> batches;
    for (int64_t r = 0; r < ep; ++r)
      batches.push_back(random_batch(model, 1 + r % 2, 8, 100 * seed + static_cast<uint64_t>(r)));
    return batches;
  };
}

// An expert group of one rank a batch; dense gradients are summed over it, experts' lie where the
// expert is.
NamedTensors sharded(const model::Model& model, const std::vector<Batch>& batches,
                     strategy::AllToAll all_to_all = strategy::AllToAll::kFlat,
                     double capacity_factor = 0) {
  const auto ep = static_cast<int64_t>(batches.size());
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<Stage*> group;
  strategy::Strategy s = tiny_strategy(model, 1, ep, 8);
  s.all_to_all = all_to_all;
  s.capacity.factor = capacity_factor;
  for (int64_t r = 0; r < ep; ++r) {
    stages.push_back(make_stage(model, s, Rank(r), options_for(batches)));
    group.push_back(stages.back().get());
    group.back()->zero_gradients();
  }
  REQUIRE(run_step(model, group, batches, s.capacity).least() >= kRoutingMargin);
  NamedTensors out;
  for (Stage* stage : group)
    for (const auto& [name, gradient] : gradients(*stage)) {
      at::Tensor& sum = out[name];
      sum = sum.defined() ? sum + gradient : gradient;
    }
  return out;
}

TEST_CASE(
    "experts sharded over 2, 3 and 6 ranks give the gradients of one rank, those of modules too") {
  for (const auto& [ep, depth] : {std::pair(2, 0), {3, 0}, {6, 0}, {2, 2}, {3, 1}}) {
    CAPTURE(ep);
    CAPTURE(depth);
    const model::Model model = model::with_mtp(tiny_model("mixtral"), depth);
    const std::vector<Batch> batches = clear_batches(model, {0}, random_batches(model, ep));
    const NamedTensors one = alone(model, batches).gradients, many = sharded(model, batches);
    CHECK(largest_difference(many, one) < 1e-10);
    CHECK(largest_difference(one, many) < 1e-10);
  }
}

TEST_CASE("tokens that travel once and are weighted at their experts give the same gradients") {
  for (const auto& [family, ep] :
       {std::pair<std::string, int>("mixtral", 2), {"olmoe", 3}, {"deepseek_v3", 6}}) {
    CAPTURE(family);
    model::Model model = model::with_mtp(tiny_model(family), ep == 2 ? 1 : 0);
    for (model::Layer& layer : model.layers)
      if (ep != 6)
        layer.feed_forward.top_k = 4;  // of 6: most tokens have several experts on a rank
    const std::vector<Batch> batches = clear_batches(model, {0, 0.7}, random_batches(model, ep));
    for (const double capacity : {0.0, 0.7}) {
      CAPTURE(capacity);
      const NamedTensors copies = sharded(model, batches, strategy::AllToAll::kFlat, capacity);
      const NamedTensors tokens = sharded(model, batches, strategy::AllToAll::kHaloDedup, capacity);
      CHECK(largest_difference(tokens, copies) < 1e-10);
      CHECK(largest_difference(copies, tokens) < 1e-10);
      CHECK(largest_difference(tokens, alone(model, batches, capacity).gradients) < 1e-10);
    }
  }
}

// Tokens after the same text have the same scores but for rounding, which is another on every mesh
// and processor.
TEST_CASE(
    "what a capacity drops of sequences that begin with one token over and over is sharded alike") {
  for (const std::string family : {"mixtral", "deepseek_v3"})
    for (const int ep : {2, 6}) {
      CAPTURE(family);
      CAPTURE(ep);
      const model::Model model = tiny_model(family);
      const auto repeating = [&](uint64_t seed) {
        std::vector<Batch> batches = random_batches(model, ep)(seed);
        for (size_t r = 0; r < batches.size(); ++r)
          batches[r].tokens_BS.narrow(1, 0, 5).fill_(static_cast<int64_t>(3 * r + 1));
        return batches;
      };
      const std::vector<Batch> batches = clear_batches(model, {0.7}, repeating);
      const NamedTensors copies = sharded(model, batches, strategy::AllToAll::kFlat, 0.7);
      const NamedTensors tokens = sharded(model, batches, strategy::AllToAll::kHaloDedup, 0.7);
      CHECK(largest_difference(tokens, copies) < 1e-10);
      CHECK(largest_difference(copies, alone(model, batches, 0.7).gradients) < 1e-10);
    }
}

TEST_CASE("every mesh starts with the same weights") {
  model::Model model = tiny_model("olmoe");
  model.tied_embeddings = true;
  const StageOptions options{.dtype = at::kDouble, .seed = 5};
  const NamedTensors whole =
      values(*make_stage(model, tiny_strategy(model, 1, 1, 8), Rank(0), options));
  size_t pieces = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const NamedTensors part =
        values(*make_stage(model, tiny_strategy(model, 2, 2, 8), Rank(rank), options));
    for (const auto& [name, value] : part) {
      CAPTURE(name);
      CHECK(at::equal(value, whole.at(name)));
    }
    pieces += part.size();
  }
  // Two ranks hold every dense tensor of their stage, both stages hold the tied table, one rank
  // holds each expert.
  const size_t experts = 2 * 6 * 3;
  CHECK(pieces == 2 * (whole.size() - experts + 1) + experts);
}

TEST_CASE("tied embeddings over two stages: the table's gradient is to be found on both") {
  model::Model model = tiny_model("mixtral");
  model.tied_embeddings = true;
  const StageOptions options{.dtype = at::kDouble};
  const auto first = make_stage(model, tiny_strategy(model, 2, 1, 8), Rank(0), options);
  const auto last = make_stage(model, tiny_strategy(model, 2, 1, 8), Rank(1), options);
  for (Stage* stage : {first.get(), last.get()}) {
    const at::Tensor table = stage->tied_embedding_gradient();
    CHECK(table.sizes() == at::IntArrayRef({model.vocabulary, model.hidden}));
    CHECK(table.is_contiguous());
  }
  const auto whole = make_stage(model, tiny_strategy(model, 1, 1, 8), Rank(0), options);
  CHECK_FALSE(whole->tied_embedding_gradient().defined());
}

}  // namespace
}  // namespace piper::nn
