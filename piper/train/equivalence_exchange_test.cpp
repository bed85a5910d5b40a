// Whichever way rows or tokens travel to their experts, training is the same.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <testing/train/equivalence_run.h>

using namespace piper;
using namespace piper::train::testing;

TEST_CASE("whichever way the rows travel, training is the same to the bit") {
  const model::Model model = small_model();
  const auto strategy = [&](strategy::AllToAll algorithm) {
    strategy::Strategy s = strategy_for(model, {.pp = 2, .ep = 4, .dp = 4}, PipelineSchedule::k1F1B,
                                        Recompute::kExperts, strategy::Precision::kFp64);
    s.all_to_all = algorithm;
    s.all_to_all_chunk_bytes = 192;  // a row and a half
    return s;
  };
  // Expert groups over two nodes of two ranks, and over nodes of three ranks and one.
  for (const collective::Topology& nodes :
       {collective::even_nodes(4, 2, 2), collective::Topology{{{0, 0, 0, 1, 1, 2, 2, 2}}, {}},
        collective::even_nodes(8, 1, 1, 2)}) {
    const Trained plain = run_training(model, strategy(strategy::AllToAll::kFlat), 3, {}, 0, nodes);
    for (const strategy::AllToAll algorithm : strategy::kAllToAlls) {
      CAPTURE(strategy::name(algorithm));
      const Trained other = run_training(model, strategy(algorithm), 3, {}, 0, nodes);
      CHECK(other.losses == plain.losses);
      CHECK(largest_difference(other.values, plain.values) == 0);
      CHECK(largest_difference(other.gradients, plain.gradients) == 0);
    }
  }
}

// Sums are taken in another order (in the node first, then over nodes), so training is equal but
// for rounding.
TEST_CASE("tokens that cross once and are weighted at their experts train as one rank does") {
  struct Case {
    strategy::Mesh mesh;
    Recompute recompute;
    collective::Topology nodes;
    int64_t chunk_bytes = 0;
  };
  const Case cases[] = {
      {{1, 4, 4}, Recompute::kNone, collective::even_nodes(2, 2)},
      {{1, 4, 4}, Recompute::kFull, collective::even_nodes(1, 4)},     // one node
      {{1, 4, 4}, Recompute::kExperts, collective::even_nodes(4, 1)},  // a node each
      {{1, 4, 4}, Recompute::kAttention, {{{0, 0, 0, 1}}, {}}, 300},   // uneven nodes, pieces
      {{2, 4, 4}, Recompute::kAttentionAndExperts, collective::even_nodes(4, 2, 2), 128},
      {{1, 4, 8}, Recompute::kFull, {{{0, 0, 1, 1, 2, 0, 2, 2}}, {}}},
      {{2, 2, 2}, Recompute::kFull, collective::even_nodes(2, 2)},
      {{1, 1, 2}, Recompute::kNone, collective::even_nodes(2, 1)},  // no exchange at all
  };
  const auto tie = [](nn::Stage& stage) {  // two experts win every token, the others get none
    for (const nn::NamedPiece& piece : stage.named_pieces())
      if (piece.name.find("mlp.gate.weight") != std::string::npos)
        const_cast<at::Tensor&>(piece.value).zero_();
  };
  model::Model three = small_model();
  for (model::Layer& layer : three.layers)
    if (layer.feed_forward.is_moe()) layer.feed_forward.top_k = 3;
  struct Trial {
    model::Model model;
    std::function<void(nn::Stage&)> prepare;
    double capacity = 0;
  };
  const Trial trials[] = {{three, {}},
                          {small_model(), tie},
                          {model::with_mtp(deepseek_like(), 1), {}},
                          {qwen2_like(), {}, 1}};
  for (const Trial& trial : trials) {
    const auto strategy = [&](const Case& c) {
      strategy::Strategy s = strategy_for(trial.model, c.mesh, PipelineSchedule::k1F1B, c.recompute,
                                          strategy::Precision::kFp64);
      s.all_to_all = strategy::AllToAll::kHaloDedup;
      s.all_to_all_chunk_bytes = c.chunk_bytes;
      s.capacity.factor = trial.capacity;
      if (trial.capacity == 0) s.reduction = strategy::Reduction::kHierarchical;
      return s;
    };
    const Trained one =
        run_training(trial.model, strategy({{1, 1, 1}, Recompute::kNone, collective::apart(1)}),
                     num_steps(), trial.prepare);
    check_learned(one);
    if (trial.capacity > 0) CHECK(one.dropped > 0);
    for (const Case& c : cases) {
      const Trained other =
          run_training(trial.model, strategy(c), num_steps(), trial.prepare, 0.3, c.nodes);
      const double difference = largest_difference(one.values, other.values);
      CHECK_MESSAGE(
          difference <= 1e-9,
          fmt::format("{} pp {} ep {} dp {} recompute {}: {}", trial.model.name, c.mesh.pp,
                      c.mesh.ep, c.mesh.dp, strategy::name(c.recompute), difference));
      CHECK(std::abs(one.losses.back() - other.losses.back()) < 1e-9);
      CHECK(std::abs(one.norms.back() - other.norms.back()) < 1e-9);
      CHECK(std::abs(one.mtp_losses.back() - other.mtp_losses.back()) < 1e-9);
    }
  }
}
