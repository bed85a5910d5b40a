// The paper's own numbers, and where the print cannot be taken at its word.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <studies/paper/piper.h>

#include <cmath>

using namespace piper;
using namespace piper::studies::paper;

namespace {

// Section VII-D: d 5120, d_ffn 20480, L 32, k 2; two matrices an expert. H is not stated.
PaperModel m10b(int64_t experts) {
  return {.hidden = 5120,
          .num_layers = 32,
          .num_heads = 40,
          .num_experts = experts,
          .top_k = 2,
          .expert_ffn = 20480,
          .num_matrices = 2};
}

// Odd sizes that no term can hide behind: d 3, L 5, H 7, E 11, k 2, d_ffn 13.
const PaperModel kOddModel{
    .hidden = 3, .num_layers = 5, .num_heads = 7, .num_experts = 11, .top_k = 2, .expert_ffn = 13};
const Batch kBatch{.sequences = 12, .sequence = 17};

using List = std::vector<Degrees>;

}  // namespace

TEST_CASE("Table III, by hand") {
  const LayerBytes layer = table_iii(kOddModel, kBatch, {});
  CHECK(layer.attention_state == 64 * 3 * 3);
  CHECK(layer.expert_state == 48 * 11 * 3 * 13);
  CHECK(layer.attention_activations == 12 * 12 * 17 * 3 + 4 * 12 * 7 * 17 * 17);
  CHECK(layer.expert_activations == 2 * 12 * 17 * 2 * (3 * 13 + 3));
}

TEST_CASE("flash attention keeps 2bHs instead of 4bHs^2, an unfused kernel 4 d_ffn instead of 3") {
  const LayerBytes flash = table_iii(kOddModel, kBatch, {.flash_attention = true});
  CHECK(flash.attention_activations == 12 * 12 * 17 * 3 + 2 * 12 * 7 * 17);
  const LayerBytes unfused = table_iii(kOddModel, kBatch, {.ffn_values = 4});
  CHECK(unfused.expert_activations == 2 * 12 * 17 * 2 * (4 * 13 + 3));
}

TEST_CASE("eq. 1 to 4, by hand") {
  // state 576 + 20592, activations 7344 + 97104 + 34272 (b 12, s 17).
  CHECK(memory_one_device(kOddModel, kBatch, {}) == 5 * (576.0 + 20592 + 7344 + 97104 + 34272));
  CHECK(memory_expert_parallel(kOddModel, kBatch, 11, {}) ==
        doctest::Approx(5 * (576 + 20592 / 11.0 + 7344 + 97104 + 34272 / 11.0)));
  CHECK(memory_gpipe(kOddModel, kBatch, {.pp = 5, .ep = 11}, {}) ==
        doctest::Approx(576 + 20592 / 11.0 + 7344 + 97104 + 34272 / 11.0));
  // 1F1B, alpha 2: M = 10 micro-batches; stage 1 of 5 holds 4 of them.
  CHECK(memory_1f1b(kOddModel, kBatch, {.pp = 5, .ep = 11}, 2, 1, {}) ==
        doctest::Approx(576 + 20592 / 11.0 + 4 * (7344 + 97104 + 34272 / 11.0) / 10));
}

TEST_CASE("eq. 5 is the difference of eq. 4 between the first and the last stage") {
  for (const int64_t pp : {1, 2, 4, 7})
    for (const double alpha : {1.0, 2.0, 3.5}) {
      const Degrees degrees{.pp = pp, .ep = 2};
      const Options options{.flash_attention = true};
      CHECK(memory_difference_1f1b(kOddModel, kBatch, degrees, alpha, options) ==
            doctest::Approx(memory_1f1b(kOddModel, kBatch, degrees, alpha, 0, options) -
                            memory_1f1b(kOddModel, kBatch, degrees, alpha, pp - 1, options)));
    }
}

TEST_CASE("a full pipeline (alpha 1) under 1F1B needs on stage 0 what GPipe needs everywhere") {
  // PP micro-batches of b / PP are the whole batch.
  for (const int64_t pp : {1, 2, 4, 7}) {
    const Degrees degrees{.pp = pp, .ep = 3};
    CHECK(memory_1f1b(kOddModel, kBatch, degrees, 1, 0, {}) ==
          doctest::Approx(memory_gpipe(kOddModel, kBatch, degrees, {})));
    CHECK(memory_1f1b(kOddModel, kBatch, degrees, 4, 0, {}) <
          memory_gpipe(kOddModel, kBatch, degrees, {}));
  }
  CHECK_THROWS_AS(memory_1f1b(kOddModel, kBatch, {.pp = 2, .ep = 1}, 1, 2, {}), InternalError);
}

TEST_CASE("as printed, b means a rank's batch in one term and the group's in the other") {
  // Balanced routing: a rank that feeds b_mu sequences into its attention receives b_mu s k copies,
  // so its expert activations are 2 b_mu s k (3 d_ffn + d), not divided by EP. Eq. 2 gives that
  // only for b = EP b_mu, and then its attention terms are EP times too large.
  const int64_t ep = 4;
  const Batch rank{.sequences = 3, .sequence = 17}, group{.sequences = 12, .sequence = 17};
  const double exact = 2 * 3 * 17 * 2 * (3 * 13 + 3);
  CHECK(table_iii(kOddModel, group, {}).expert_activations / ep == exact);
  CHECK(table_iii(kOddModel, rank, {}).expert_activations / ep == exact / ep);
  CHECK(table_iii(kOddModel, group, {}).attention_activations ==
        ep * table_iii(kOddModel, rank, {}).attention_activations);
}

TEST_CASE("M10B adds up to 862 B, 1.7 T, 111 B and 10 B with two matrices an expert") {
  CHECK(num_parameters(m10b(128)) / 1e9 == doctest::Approx(862.3).epsilon(0.0001));
  CHECK(num_parameters(m10b(256)) / 1e9 == doctest::Approx(1721.3).epsilon(0.0001));
  CHECK(num_parameters(m10b(16)) / 1e9 == doctest::Approx(110.7).epsilon(0.001));
  CHECK(num_parameters(m10b(1)) / 1e9 == doctest::Approx(10.07).epsilon(0.001));
  // With the three of the text it would be half as much again.
  PaperModel swiglu = m10b(128);
  swiglu.num_matrices = 3;
  CHECK(num_parameters(swiglu) / 1e9 == doctest::Approx(1291.8).epsilon(0.001));
}

TEST_CASE("eq. 7 to 10 admit exactly these PP x EP for M10B on Frontier") {
  CHECK(admitted(m10b(256), {.num_devices = 1024}) == List{{32, 32}});
  CHECK(admitted(m10b(128), {.num_devices = 512}) == List{{16, 32}, {32, 16}});
  CHECK(admitted(m10b(16), {.num_devices = 64}) == List{{4, 16}, {8, 8}, {16, 4}, {32, 2}});
}

TEST_CASE(
    "eq. 11 with 64 GB and one sequence of 4,096 a micro-batch leaves those sets as they are") {
  // b = M = PP * alpha with alpha 4: one sequence a micro-batch; flash attention.
  for (const auto& [experts, devices] : {std::pair{256, 1024}, {128, 512}, {16, 64}}) {
    const Machine open{.num_devices = devices},
        frontier{.num_devices = devices, .memory_bytes = 64e9};
    List fitting;
    for (const Degrees& degrees : admitted(m10b(experts), open)) {
      const Load load{
          .batch = {.sequences = 4.0 * static_cast<double>(degrees.pp), .sequence = 4096},
          .alpha = 4,
          .options = {.flash_attention = true}};
      if (violated_equations(m10b(experts), frontier, degrees, load).empty())
        fitting.push_back(degrees);
    }
    CHECK(fitting == admitted(m10b(experts), open));
  }
}

TEST_CASE("each equation forbids what it says") {
  const PaperModel model = m10b(16);
  const Machine machine{.num_devices = 64};
  const auto violated = [&](int64_t pp, int64_t ep) {
    return violated_equations(model, machine, {.pp = pp, .ep = ep});
  };
  CHECK(violated(4, 16).empty());
  CHECK(violated(4, 8) == std::vector{7});
  CHECK(violated(2, 32) == std::vector{8});
  CHECK(violated(64, 1) == std::vector{9});
  CHECK(violated(1, 64) == std::vector{8, 10});
  CHECK(violated_equations(m10b(256), {.num_devices = 1024}, {.pp = 16, .ep = 64}) ==
        std::vector{10});
  // 110.7 G parameters of 16 bytes on one GPU.
  CHECK(violated_equations(model, {.num_devices = 1, .memory_bytes = 64e9}, {.pp = 1, .ep = 1}) ==
        std::vector{11});
  // PP <= L: 24 stages of 32 layers hold one or two each, 33 would leave one without.
  CHECK(violated_equations(model, {.num_devices = 24}, {.pp = 24, .ep = 1}).empty());
  CHECK(violated_equations(model, {.num_devices = 33}, {.pp = 33, .ep = 1}) == std::vector{9});
}

TEST_CASE("eq. 6 is dispatch and combine with a NIC each; Frontier's GCDs share one in pairs") {
  // b 32, s 4096, k 2, d 5120, EP 32, 25 GB/s: 4 b s k d / EP = 167.8 MB, 6.71 ms.
  const Batch batch{.sequences = 32, .sequence = 4096};
  const PaperModel model = m10b(128);
  CHECK(dispatch_bytes(model, batch, 32) == 2.0 * 32 * 4096 * 2 * 5120 / 32);
  CHECK(all_to_all_seconds(model, batch, 32, 25e9) == doctest::Approx(6.711e-3).epsilon(0.0001));
  CHECK(all_to_all_seconds(model, batch, 32, 25e9, 2) ==
        doctest::Approx(8.0 * 32 * 4096 * 2 * 5120 / (32 * 25e9)));
  // A rank holds b s / EP tokens and sends each k times, 1 / EP of the copies to every peer.
  const double copies = 32.0 * 4096 / 32 * 2;
  CHECK(dispatch_bytes(model, batch, 32) == copies * 2 * 5120);
  CHECK(stage_message_bytes(model, {.sequences = 1, .sequence = 4096}) == 2.0 * 4096 * 5120);
}

TEST_CASE("Table IV, every row in its own unit") {
  REQUIRE(table_iv().size() == 7);
  for (const MigrationRow& row : table_iv()) {
    CAPTURE(row.model);
    if (row.model == "GLaM (1.2T)") continue;
    // Printed with two digits, and the latency from the rounded size.
    CHECK(std::abs(row.size() - row.printed_size) < 0.011);
    CHECK(std::abs(row.milliseconds() - row.printed_milliseconds) < 0.21);
    CHECK(row.printed_size / 50 * 1000 == doctest::Approx(row.printed_milliseconds));
  }
  CHECK(table_iv()[1].size() == 2.625);
  CHECK(table_iv()[5].size() == doctest::Approx(7.03).epsilon(0.0005));
  CHECK(table_iv()[6].size() == 21);
  CHECK(table_iv()[0].size() == doctest::Approx(1.208).epsilon(0.0005));
}

TEST_CASE("of Table IV three quarters travel between two steps") {
  CHECK(table_iv()[1].size() * MigrationRow::moved_part() == 1.96875);  // Mixtral 8x7B, GiB
  CHECK(table_iv()[6].milliseconds() * MigrationRow::moved_part() == doctest::Approx(315));
}

TEST_CASE("Table IV prints 102.88 GB for GLaM where its own formula gives 103.08") {
  const MigrationRow& glam = table_iv()[4];
  CHECK(glam.size() == doctest::Approx(103.08).epsilon(0.0001));
  CHECK(glam.printed_size == 102.88);
  CHECK(glam.milliseconds() == doctest::Approx(2061.6).epsilon(0.0001));
}

TEST_CASE("the units of Table IV cannot be exchanged: no single one fits all rows") {
  for (const MigrationRow& row : table_iv()) {
    MigrationRow other = row;
    other.unit = row.unit == "GB" ? "GiB" : "GB";
    CHECK(std::abs(other.size() - other.printed_size) > 0.05);
  }
}

TEST_CASE("191.5 TFLOP/s is the peak behind 20 % MFU, and 1.7 T parameters reach 17.2 %") {
  // One GCD, one second of step without exposed communication: MFU is the achieved rate by the
  // peak.
  CHECK(mfu(39.38e12, 191.5e12, 1, 1, 0).value() == doctest::Approx(0.2056).epsilon(0.001));
  CHECK(mfu(33e12, 191.5e12, 1, 1, 0).value() == doctest::Approx(0.1723).epsilon(0.001));
  // From 512 to 1,024 GCDs the rate falls to 0.838; 73 % from 64 to 1,024 implies 45.2 at 64.
  CHECK(mfu(33e12, 191.5e12, 1, 1, 0).value() / mfu(39.38e12, 191.5e12, 1, 1, 0).value() ==
        doctest::Approx(0.838).epsilon(0.001));
  CHECK(mfu(33e12 / 0.73, 191.5e12, 1, 1, 0).value() ==
        doctest::Approx(45.2 / 191.5).epsilon(0.001));
}

TEST_CASE("eq. 12: only communication that is not hidden costs MFU") {
  // 8 devices of 10 FLOP/s, 400 FLOPs, 8 s of compute, 2 s exposed: 0.625 * 0.8 = 400 / (80 * 10).
  const Mfu parts = mfu(400, 10, 8, 8, 2);
  CHECK(parts.hardware_efficiency == doctest::Approx(0.625));
  CHECK(parts.compute_fraction == doctest::Approx(0.8));
  CHECK(parts.value() == doctest::Approx(0.5));
}

TEST_CASE(
    "a model description becomes the paper's symbols; the first mixture layer speaks for all") {
  model::Model model;
  model.hidden = 64;
  model.layers.resize(3);
  for (model::Layer& layer : model.layers) layer.attention.num_heads = 4;
  model.layers[0].feed_forward.ffn = 100;
  for (size_t i = 1; i < 3; ++i) {
    model.layers[i].feed_forward.ffn = 32;
    model.layers[i].feed_forward.num_experts = 8;
    model.layers[i].feed_forward.top_k = 2;
  }
  const PaperModel moe = from_model(model);
  CHECK(moe.num_layers == 3);
  CHECK(moe.num_heads == 4);
  CHECK(moe.num_experts == 8);
  CHECK(moe.top_k == 2);
  CHECK(moe.expert_ffn == 32);
  CHECK(moe.num_matrices == 3);
  model.layers.resize(1);
  const PaperModel dense = from_model(model);
  CHECK(dense.num_experts == 1);
  CHECK(dense.top_k == 1);
  CHECK(dense.expert_ffn == 100);
}
