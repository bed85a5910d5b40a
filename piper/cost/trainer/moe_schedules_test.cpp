// Orders of a mixture layer, priced on the machines of the papers that propose them.
#include <doctest/doctest.h>
#include <piper/cost/trainer/layer_price.h>
#include <piper/cost/trainer/moe_schedules.h>
#include <piper/cost/trainer/rates.h>
#include <piper/model/import.h>
#include <testing/cost/relative_approx.h>

#include <algorithm>
#include <map>
#include <string>

using namespace piper;
using namespace piper::cost;

namespace {

// The shape of MoNTA's 2 x 70B, one expert a node.
model::FeedForward two_experts() { return {.ffn = 28'672, .num_experts = 2, .top_k = 1}; }
const MoeSetting kMonta{.hidden = 8192, .tokens = 65'536, .tp = 8, .ep = 2, .etp = 8};

using MoePrices = std::map<std::string, MoeSchedulePrice>;
MoePrices prices(const model::FeedForward& layer, const MoeSetting& setting,
                 const std::string& cluster = "a800") {
  MoePrices by_name;
  for (const MoeSchedulePrice& p :
       price_moe_schedules(layer, setting, cluster::load_cluster(cluster)))
    by_name[p.name] = p;
  REQUIRE(by_name.size() == strategy::kMoeSchedules.size());
  return by_name;
}

}  // namespace

TEST_CASE("the plain exchange sends every row once for each rank that holds its token, by hand") {
  const cluster::Cluster a800 = cluster::load_cluster("a800");
  const double bytes = 65'536.0 * 8192 * 2;  // of a rank's rows, half of which leave the node
  const MoeSchedulePrice plain = prices(two_experts(), kMonta).at("plain");
  CHECK(plain.bytes_across == 4 * bytes / 2);  // two exchanges, forward and backward
  const double way =
      a800.levels[1].link.latency_seconds + bytes / 2 / a800.levels[1].link.bytes_per_second;
  CHECK(plain.forward.exchange == near(2 * way));
  // Nothing to gather before the experts, since all ranks of the node hold the same rows; an
  // all-reduce of their parts behind them.
  const Rates rates(a800, strategy::Precision::kBf16);
  CHECK(plain.forward.gather == near(2 * rates.all_gather_seconds(8, 1, bytes)));
  CHECK(plain.forward.total ==
        near(plain.forward.exchange + plain.forward.gather + plain.forward.experts));
}

TEST_CASE("MoNTA's levels send a tp-th between nodes, Parm's schedules a tp-th as often as etp") {
  const MoePrices p = prices(two_experts(), kMonta);
  CHECK(p.at("monta-o1").bytes_across == near(p.at("plain").bytes_across / 8));
  CHECK(p.at("monta-o3").bytes_across == p.at("monta-o1").bytes_across);
  // A fused exchange sends a row to each of the 8 ranks that share its expert.
  CHECK(p.at("parm-s1").bytes_across == near(p.at("plain").bytes_across));
  CHECK(p.at("parm-baseline").bytes_across == near(8 * p.at("plain").bytes_across));
}

TEST_CASE("whole experts compute each row tp times under plain, once under every other schedule") {
  const MoeSetting setting{.hidden = 4096, .tokens = 8192, .tp = 8, .ep = 16};
  const MoePrices p = prices({.ffn = 14'336, .num_experts = 16, .top_k = 2}, setting);
  for (const char* name : {"parm-s1", "parm-s2", "monta-o1"}) {
    CHECK(p.at(name).forward.experts < 0.2 * p.at("plain").forward.experts);
    CHECK(p.at(name).bytes_across == near(p.at("plain").bytes_across / 8));
  }
  CHECK(p.at("parm-baseline").total() == near(p.at("plain").total()));
}

TEST_CASE("without tensor parallelism there is nothing to split: S1 = S2 = O1 = plain") {
  const MoeSetting setting{.hidden = 4096, .tokens = 4096, .ep = 16};
  const MoePrices p = prices({.ffn = 4096, .num_experts = 16, .top_k = 2}, setting);
  for (const char* name : {"parm-baseline", "parm-s1", "parm-s2", "monta-o1"})
    CHECK(p.at(name).total() == near(p.at("plain").total()));
}

TEST_CASE("ranks that share an expert but no tokens gather each other's rows, or exchange them") {
  // etp 4, tp 1: the baseline and plain gather 4 I, S1 and S2 send each row to 4 ranks at once.
  const MoeSetting setting{.hidden = 4096, .tokens = 4096, .ep = 4, .etp = 4};
  const MoePrices p = prices({.ffn = 4096, .num_experts = 16, .top_k = 2}, setting);
  CHECK(p.at("parm-s1").forward.gather == 0);
  CHECK(p.at("plain").forward.gather > 0);
  CHECK(p.at("parm-s1").total() == p.at("parm-s2").total());
  CHECK(p.at("plain").forward.experts == near(p.at("parm-s1").forward.experts));
}

TEST_CASE("chunks only where they pay, and never for more than one whole") {
  for (const double tokens : {1.0, 64.0, 8192.0, 65'536.0}) {
    MoeSetting setting = kMonta;
    setting.tokens = tokens;
    const MoePrices p = prices(two_experts(), setting);
    CHECK(p.at("monta-o2").total() <= p.at("monta-o1").total() * (1 + 1e-12));
    CHECK(p.at("monta-o3").total() <= p.at("monta-o1").total() * (1 + 1e-12));
    CHECK(p.at("chunked").total() <= p.at("plain").total() * (1 + 1e-12));
    CHECK(p.at("fastermoe").total() <= p.at("plain").total() * (1 + 1e-12));
    CHECK(p.at("fastermoe").num_chunks <= setting.ep);
    for (const char* name : {"monta-o2", "monta-o3", "chunked"})
      CHECK(static_cast<double>(p.at(name).num_chunks) <= tokens);
    if (tokens == 65'536) CHECK(p.at("monta-o3").num_chunks > 1);
    if (tokens == 64) CHECK(p.at("monta-o3").num_chunks == 1);
  }
}

TEST_CASE("what overlaps takes no less than its longest part and no more than the sum") {
  for (const int64_t tp : {1, 2, 4, 8})
    for (const int64_t etp : {1, 2, 8})
      for (const char* cluster : {"a800", "rtx2080ti"}) {
        const MoeSetting setting{.hidden = 2048,
                                 .tokens = 4096,
                                 .tp = tp,
                                 .ep = 4,
                                 .etp = etp,
                                 .precision = strategy::Precision::kFp32};
        for (const auto& [name, p] :
             prices({.ffn = 4096, .num_experts = 4, .top_k = 2}, setting, cluster))
          for (const MoePass& pass : {p.forward, p.backward}) {
            CAPTURE(name);
            CHECK(pass.total >= std::max({pass.exchange, pass.gather, pass.experts}) * (1 - 1e-12));
            CHECK(pass.overlapped() >= -1e-12 * pass.total);
          }
      }
}

TEST_CASE("S2 gathers k times what S1 does, beside its exchange: few choices for S2, many for S1") {
  const MoeSetting setting{
      .hidden = 4096, .tokens = 8192, .tp = 4, .ep = 8, .precision = strategy::Precision::kFp32};
  const auto s2_over_s1 = [&](int64_t top_k) {
    const MoePrices p =
        prices({.ffn = 4096, .num_experts = 32, .top_k = top_k}, setting, "rtx2080ti");
    return p.at("parm-s2").total() / p.at("parm-s1").total();
  };
  CHECK(s2_over_s1(1) < 1);
  CHECK(s2_over_s1(8) > 1);
}

TEST_CASE("the backward gathers what the forward split: as long") {
  const MoePrices p = prices(two_experts(), kMonta);
  for (const auto& [name, price] : p) {
    CAPTURE(name);
    CHECK(price.backward.exchange == price.forward.exchange);
    CHECK(price.backward.gather == near(price.forward.gather));
    CHECK(price.backward.experts > 1.5 * price.forward.experts);
  }
}

TEST_CASE("orders without chunks are the layers that the planner prices") {
  const model::Model model = model::load_model("mixtral-8x7b");
  const cluster::Cluster a800 = cluster::load_cluster("a800");
  const TrainerProfile trainer = load_trainer("piper");
  const Rates rates(a800, strategy::Precision::kBf16);
  using enum strategy::MoeSchedule;
  for (const auto& [tp, etp] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {4, 2}, {2, 4}})
    for (const strategy::MoeSchedule schedule : {kPlain, kParmBaseline, kParmS1, kMontaO1}) {
      if (schedule == kParmBaseline ? etp == 1 : tp == 1 && schedule != kPlain) continue;
      // Piper gathers the rows of all ranks that share an expert, also those that are the same.
      if (tp > 1 && etp > tp && schedule == kPlain) continue;
      CAPTURE(tp);
      CAPTURE(etp);
      CAPTURE(strategy::name(schedule));
      const LayerPrice layer = price_layer(model, model.layers.front(),
                                           {.tokens = 4096,
                                            .sequence = 4096,
                                            .tp = tp,
                                            .ep = 8,
                                            .etp = etp,
                                            .moe_schedule = schedule,
                                            .exchange = {strategy::AllToAll::kNodeAware}},
                                           trainer, rates, strategy::Precision::kBf16);
      const MoeSchedulePrice alone = prices(model.layers.front().feed_forward,
                                            {.hidden = 4096,
                                             .tokens = 4096,
                                             .tp = tp,
                                             .ep = 8,
                                             .etp = etp,
                                             .grouped_efficiency = trainer.grouped_efficiency})
                                         .at(strategy::name(schedule));
      for (const MixtureCollectives* m : {&layer.mixture_forward, &layer.mixture_backward}) {
        CHECK(alone.forward.exchange == near(m->dispatch.moves.total() + m->combine.moves.total()));
        CHECK(alone.forward.exchange + alone.forward.gather ==
              near(m->exposed() + m->tokens.moves.total() + m->expert_tensor.moves.total() +
                   m->output.moves.total()));
        CHECK(m->exposed() == near(alone.forward.exchange));
      }
      CHECK(alone.forward.experts == near(layer.experts_forward));
    }
}

// What chunks save of the planner's layer is what they save of the layer's mixture alone: routing
// and attention are alike. The planner counts one launch of the pass over the experts' elements for
// all chunks, here each has its own; 1e-9 of the layer is rounding.
TEST_CASE("chunks are the layers that the planner prices, in every count and order") {
  const model::Model model = model::load_model("mixtral-8x7b");
  const TrainerProfile trainer = load_trainer("piper");
  using enum strategy::MoeSchedule;
  for (const char* machine : {"a800", "rtx4090x8"})
    for (const auto& [tp, etp] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 2}, {2, 1}, {2, 2}, {4, 2}})
      for (const strategy::MoeSchedule schedule : {kChunked, kFasterMoe, kMontaO2, kParmS2}) {
        if (tp == 1 && traits(schedule).divides_rows) continue;
        const int64_t ep = 8 / std::max(tp, etp);
        CAPTURE(machine);
        CAPTURE(tp);
        CAPTURE(etp);
        CAPTURE(strategy::name(schedule));
        const cluster::Cluster cluster = cluster::load_cluster(machine);
        const Rates rates(cluster, strategy::Precision::kBf16);
        const auto layer = [&](int64_t n) {
          return price_layer(model, model.layers.front(),
                             {.tokens = 4096,
                              .sequence = 4096,
                              .tp = tp,
                              .ep = ep,
                              .etp = etp,
                              .moe_schedule = schedule,
                              .moe_chunks = n},
                             trainer, rates, strategy::Precision::kBf16);
        };
        const std::vector<MoeSchedulePrice> alone =
            price_chunks(model.layers.front().feed_forward,
                         {.hidden = 4096,
                          .tokens = 4096,
                          .tp = tp,
                          .ep = ep,
                          .etp = etp,
                          .grouped_efficiency = trainer.grouped_efficiency},
                         cluster, schedule);
        const bool groups_peers = traits(schedule).groups_peers;
        CHECK(std::ssize(alone) == (groups_peers ? ep : strategy::kMaxMoeChunks));
        const LayerPrice whole = layer(1);
        for (const int64_t n : {2, 3, 8, 32}) {
          if (n > std::ssize(alone)) continue;
          const LayerPrice cut = layer(n);
          const MoeSchedulePrice& p = alone[static_cast<size_t>(n - 1)];
          CHECK(p.num_chunks == n);
          const double launches = static_cast<double>(n - 1) * rates.launch_seconds();
          const double forward = p.forward.total - alone.front().forward.total -
                                 (cut.forward.total() - whole.forward.total());
          const double backward = p.backward.total - alone.front().backward.total -
                                  (cut.backward.total() - whole.backward.total());
          CHECK(forward >= -1e-9 * whole.forward.total());
          CHECK(forward <= launches + 1e-9 * whole.forward.total());
          CHECK(backward >= -1e-9 * whole.backward.total());
          CHECK(backward <= launches + 1e-9 * whole.backward.total());
        }
      }
}

TEST_CASE("a chunk of the table is the best of all counts") {
  const std::vector<MoeSchedulePrice> chunks = price_chunks(
      two_experts(), kMonta, cluster::load_cluster("a800"), strategy::MoeSchedule::kChunked);
  const MoeSchedulePrice chunked = prices(two_experts(), kMonta).at("chunked");
  CHECK(chunked.num_chunks == chunks[cheapest(chunks)].num_chunks);
  CHECK(chunked.total() == chunks[cheapest(chunks)].total());
  CHECK(chunks.front().total() == near(prices(two_experts(), kMonta).at("plain").total()));
}

TEST_CASE("the cheapest, and by which terms") {
  MoeSchedulePrice slow{.name = "plain",
                        .forward = {.exchange = 0.008, .experts = 0.002, .total = 0.010},
                        .backward = {.experts = 0.004, .total = 0.004}};
  MoeSchedulePrice fast = slow;
  fast.name = "parm-s1";
  fast.forward = {.exchange = 0.001, .gather = 0.003, .experts = 0.002, .total = 0.005};
  CHECK(cheapest({slow, fast}) == 1);
  CHECK(cheapest({slow, slow}) == 0);
  CHECK(why_cheaper(fast, slow) ==
        "parm-s1 takes 0.64 of the time of plain: it saves 7.00 ms of exchanges, 1.00 ms that "
        "overlap, for 3.00 ms of gathers");
}
