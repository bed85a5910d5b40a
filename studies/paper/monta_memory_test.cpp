// Tables 3 and 4 of MoNTA, by hand and against what their print says.
#include <doctest/doctest.h>
#include <piper/base/error.h>
#include <piper/strategy/state_bytes.h>
#include <studies/paper/monta_memory.h>

using namespace piper;
using namespace piper::studies::paper::monta;

namespace {

// Odd sizes: b s h l = 2 * 3 * 5 * 7 = 210; 5 a s / h = 5 * 11 * 3 / 5 = 33.
const Shape kOddShape{.micro_batch = 2,
                      .sequence = 3,
                      .hidden = 5,
                      .num_heads = 11,
                      .num_layers = 7,
                      .top_k = 2,
                      .dense_parameters = 840,
                      .expert_parameters = 10'080};
const Degrees kDegrees{.dp = 4, .pp = 3, .tp = 7, .ep = 2, .edp = 2};

}  // namespace

TEST_CASE("Table 3, by hand: 40 dense and 240 expert parameters a device") {
  CHECK(state_bytes(kOddShape, kDegrees, 0) == 16 * 40 + 16 * 240);
  CHECK(state_bytes(kOddShape, kDegrees, 1) == (4 + 12 / 4.0) * 40 + (4 + 12 / 2.0) * 240);
  CHECK(state_bytes(kOddShape, kDegrees, 2) == (2 + 14 / 4.0) * 40 + (2 + 14 / 2.0) * 240);
  CHECK(state_bytes(kOddShape, kDegrees, 3) == 16 / 4.0 * 40 + 16 / 2.0 * 240);
  CHECK_THROWS_AS(state_bytes(kOddShape, kDegrees, 4), InternalError);
}

TEST_CASE("without replicas every ZeRO stage holds 16 bytes a parameter") {
  Degrees alone = kDegrees;
  alone.dp = alone.edp = 1;
  for (const int64_t zero : {0, 1, 2, 3})
    CHECK(state_bytes(kOddShape, alone, zero) == state_bytes(kOddShape, alone, 0));
}

TEST_CASE("Table 3 as printed has lost letters: its ZeRO-1 holds less than weights and gradients") {
  // (4/3 + 1/(p t)) P1 for dense parameters: on one device, without any replica, 2.33 bytes of 16.
  const double printed = (4.0 / 3 + 1) * kOddShape.dense_parameters;
  Shape dense = kOddShape;
  dense.expert_parameters = 0;
  CHECK(printed < 4 * dense.dense_parameters);
  CHECK(state_bytes(dense, {}, 1) == 16 * dense.dense_parameters);
}

TEST_CASE("eq. 2 and Table 4, by hand") {
  const auto bytes = [](Activations row) { return activation_bytes(kOddShape, kDegrees, row); };
  CHECK(bytes(Activations::kNotParallel) == 210 * (13 + 42 + 33));
  CHECK(bytes(Activations::kTensor) == doctest::Approx(210 * (5 + 5 + (8 + 16) / 7.0 + 33 / 7.0)));
  CHECK(bytes(Activations::kSequence) == doctest::Approx(210 * (55 / 7.0 + 33 / 7.0)));
  CHECK(bytes(Activations::kSelective) == doctest::Approx(210 * 55 / 7.0));
  CHECK(bytes(Activations::kFull) == doctest::Approx(2 * 210 / 7.0));
  CHECK(memory_bytes(kOddShape, kDegrees, 1, Activations::kFull) ==
        state_bytes(kOddShape, kDegrees, 1) + bytes(Activations::kFull));
}

TEST_CASE("with k = 1 eq. 2 is Korthikanti's 34 + 5as/h, and the print's 59a/h is 5as/h") {
  Shape dense = kOddShape;
  dense.top_k = 1;
  CHECK(activation_bytes(dense, {}, Activations::kNotParallel) == 210 * (34 + 33));
  CHECK(59 * kOddShape.num_heads / kOddShape.hidden != doctest::Approx(33));
}

TEST_CASE("on one device every row but recomputation is eq. 2") {
  const double whole = activation_bytes(kOddShape, {}, Activations::kNotParallel);
  CHECK(activation_bytes(kOddShape, {}, Activations::kTensor) == whole);
  CHECK(activation_bytes(kOddShape, {}, Activations::kSequence) == whole);
  CHECK(activation_bytes(kOddShape, {}, Activations::kSelective) == whole - 210 * 33);
}

TEST_CASE("5k/e is the paper form: a rank of balanced routing receives what it sends") {
  // e ranks that each send b s k copies receive b s k each, whatever e is; the table divides them.
  const auto tensor = [](int64_t ep) {
    return activation_bytes(kOddShape, {.ep = ep}, Activations::kTensor);
  };
  CHECK(tensor(1) - tensor(2) == 210 * 21 * 2 / 2.0);
}
